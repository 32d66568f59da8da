// Dense columns of a batch: numbers and fixed-size lists into row-major float matrices.
#pragma once

#include <algorithm>
#include <vector>

#include "convert.h"
#include "pack.h"

namespace hybridrec {

// One dense column or fixed-size list, spread over the rows of a block of kRows rows of its matrix.
class DenseWriter {
 public:
  DenseWriter(const DenseField& field, const Chunks& chunks, int64_t stride)
      : field_(field), chunks_(chunks), stride_(stride) {
    plain_ = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk* chunk) {
      const Column& column = chunk->column(field.column);
      return column.shape == Shape::Scalar && column.validity == nullptr;
    });
    const bool floats = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk* chunk) {
      return chunk->column(field.column).values.kind == Kind::Float;
    });
    if (plain_ && floats) bases_ = bases<float>(chunks, field.column);
  }

  int matrix() const { return field_.matrix; }

  // RowChoice [start, stop) of one chunk, at most kRows of them, to the rows of `block`.
  bool run(int64_t chunk, int64_t start, int64_t stop, float* block, Fault& fault) const {
    float* out = block + field_.at;
    if (!plain_) {
      for (int64_t row = start; row < stop; ++row, out += stride_)
        if (!one(static_cast<int>(chunk), row, out, fault)) return false;
      return true;
    }
    float converted[kRows];
    const float* in = converted;
    if (bases_.empty()) {
      convert(chunks_[chunk]->column(field_.column).values, start, stop - start, converted);
    } else {
      in = bases_[chunk] + start;
    }
    for (int64_t i = 0; i < stop - start; ++i) out[i * stride_] = in[i];
    return true;
  }

  // RowChoice [from, to) of a gathered batch, likewise.
  bool gather(const RowChoice& rows, int64_t from, int64_t to, float* block, Fault& fault) const {
    float* out = block + field_.at;
    for (int64_t j = from; j < to; ++j, out += stride_) {
      if (!bases_.empty()) {
        *out = bases_[rows.chunk_of[j]][rows.row_of[j]];
      } else if (!one(rows.chunk_of[j], rows.row_of[j], out, fault)) {
        return false;
      }
    }
    return true;
  }

  static constexpr int64_t kRows = 512;

 private:
  bool one(int chunk, int64_t row, float* out, Fault& fault) const {
    const Column& column = chunks_[chunk]->column(field_.column);
    const int64_t begin = column.begin(row), n = column.begin(row + 1) - begin;
    const auto fail = [&](Fault::What what) {
      fault = {what, field_.column, chunk, row, n, field_.width};
      return false;
    };
    if (column.is_null(row)) {
      if (field_.null == Null::Error) return fail(Fault::What::NullRow);
      std::copy(field_.row_default.begin(), field_.row_default.end(), out);
      return true;
    }
    if (n != field_.width) return fail(Fault::What::Width);
    convert(column.values, begin, n, out);
    if (column.values.validity == nullptr || column.shape == Shape::Scalar) return true;
    for (int64_t e = 0; e < n; ++e) {
      if (!column.values.is_null(begin + e)) continue;
      if (field_.null == Null::Error) return fail(Fault::What::NullElement);
      out[e] = field_.row_default[e];
    }
    return true;
  }

  const DenseField& field_;
  const Chunks& chunks_;
  int64_t stride_;
  bool plain_;
  std::vector<const float*> bases_;  // where every chunk holds plain floats
};

// All dense fields of a batch into its matrices. A block of rows is filled column by column in the cache, then streamed
// to the matrix in one piece.
inline bool write_dense(const std::vector<DenseWriter>& writers, const RowChoice& rows, float* const matrices[3],
                        const int64_t widths[3], Fault& fault) {
  constexpr int64_t kRows = DenseWriter::kRows;
  std::vector<float> blocks[3];
  for (int m = 0; m < 3; ++m) blocks[m].resize(kRows * widths[m]);
  int64_t at = 0;
  const auto flush = [&](int64_t n) {
    for (int m = 0; m < 3; ++m)
      if (widths[m] > 0) stream_copy(matrices[m] + at * widths[m], blocks[m].data(), n * widths[m] * sizeof(float));
    at += n;
  };
  if (rows.row_of != nullptr) {
    for (int64_t from = 0; from < rows.count; from += kRows) {
      const int64_t to = std::min(rows.count, from + kRows);
      for (const DenseWriter& writer : writers)
        if (!writer.gather(rows, from, to, blocks[writer.matrix()].data(), fault)) return false;
      flush(to - from);
    }
    return true;
  }
  for (const Run& run : rows.runs)
    for (int64_t start = run.start; start < run.stop; start += kRows) {
      const int64_t stop = std::min(run.stop, start + kRows);
      for (const DenseWriter& writer : writers)
        if (!writer.run(run.chunk, start, stop, blocks[writer.matrix()].data(), fault)) return false;
      flush(stop - start);
    }
  return true;
}

}  // namespace hybridrec
