// Dense columns of a batch: numbers and fixed-size lists into row-major float matrices.
#pragma once

#include <algorithm>
#include <vector>

#include "convert.h"
#include "pack.h"

namespace hybridrec {

// Dense columns and fixed-size lists into row-major matrices, a block of rows at a time: the block's part of the
// matrix stays in the cache while every column is spread over it.
class DenseWriter {
 public:
  DenseWriter(const DenseField& field, const Chunks& chunks, float* matrix, int64_t stride)
      : field_(field), chunks_(chunks), out_(matrix + field.at), stride_(stride) {
    plain_ = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk* chunk) {
      const Column& column = chunk->column(field.column);
      return column.shape == Shape::Scalar && column.validity == nullptr;
    });
    const bool floats = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk* chunk) {
      return chunk->column(field.column).values.kind == Kind::Float;
    });
    if (plain_ && floats) bases_ = bases<float>(chunks, field.column);
  }

  // Rows [start, stop) of one chunk to rows `at` and on of the matrix; at most kRows of them.
  bool run(int64_t chunk, int64_t start, int64_t stop, int64_t at, Fault& fault) const {
    float* out = out_ + at * stride_;
    if (!plain_) {
      for (int64_t row = start; row < stop; ++row, out += stride_)
        if (!one(static_cast<int>(chunk), row, out, fault)) return false;
      return true;
    }
    float block[kRows];
    const float* in = block;
    if (bases_.empty()) {
      convert(chunks_[chunk]->column(field_.column).values, start, stop - start, block);
    } else {
      in = bases_[chunk] + start;
    }
    for (int64_t i = 0; i < stop - start; ++i) out[i * stride_] = in[i];
    return true;
  }

  // Rows [from, to) of a gathered batch.
  bool gather(const Rows& rows, int64_t from, int64_t to, Fault& fault) const {
    for (int64_t j = from; j < to; ++j) {
      if (!bases_.empty()) {
        out_[j * stride_] = bases_[rows.chunk_of[j]][rows.row_of[j]];
      } else if (!one(rows.chunk_of[j], rows.row_of[j], out_ + j * stride_, fault)) {
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
  float* out_;
  int64_t stride_;
  bool plain_;
  std::vector<const float*> bases_;  // where every chunk holds plain floats
};

inline bool write_dense(const std::vector<DenseWriter>& writers, const Rows& rows, Fault& fault) {
  constexpr int64_t kRows = DenseWriter::kRows;
  if (rows.row_of != nullptr) {
    for (int64_t from = 0; from < rows.count; from += kRows)
      for (const DenseWriter& writer : writers)
        if (!writer.gather(rows, from, std::min(rows.count, from + kRows), fault)) return false;
    return true;
  }
  int64_t at = 0;
  for (const Run& run : rows.runs)
    for (int64_t start = run.start; start < run.stop; start += kRows) {
      const int64_t stop = std::min(run.stop, start + kRows);
      for (const DenseWriter& writer : writers)
        if (!writer.run(run.chunk, start, stop, at, fault)) return false;
      at += stop - start;
    }
  return true;
}

}  // namespace hybridrec
