// One id feature of a batch: its offsets, ids and weights, from rows of several chunks.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "convert.h"
#include "pack.h"

namespace hybridrec {

constexpr int64_t kWord = 4;  // ids copied at once

// Offsets of one run, moved to where the run lies in the batch.
template <typename In>
HYBRIDREC_SIMD void shift_run(const In* in, int64_t shift, int64_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] + shift;
}

template <typename T>
void gather_scalars(const T* const* base, const RowChoice& rows, T* out, int64_t stride) {
  for (int64_t j = 0; j < rows.count; ++j) out[j * stride] = base[rows.chunk_of[j]][rows.row_of[j]];
}

// One id feature of one batch. RowChoice are visited as runs where they are contiguous, singly where they are gathered.
class IdWriter {
 public:
  IdWriter(const IdField& field, const Chunks& chunks, const RowChoice& rows) : field_(field), chunks_(chunks), rows_(rows) {
    for (const Chunk* chunk : chunks) {
      const Column& column = chunk->column(field.column);
      clean_ = clean_ && column.validity == nullptr && column.values.validity == nullptr;
    }
  }

  // Pass 1: the end of each row's ids, relative to the feature's start; returns their count or -1 on a fault.
  int64_t measure(int64_t* ends, Fault& fault) const {
    int64_t total = 0;
    if (clean_ && rows_.row_of == nullptr) {
      for (const Run& run : rows_.runs) {
        const Column& column = chunks_[run.chunk]->column(field_.column);
        const int64_t n = run.stop - run.start, shift = total - column.begin(run.start);
        switch (column.shape) {
          case Shape::List32: shift_run(static_cast<const int32_t*>(column.offsets) + run.start + 1, shift, ends, n); break;
          case Shape::List64: shift_run(static_cast<const int64_t*>(column.offsets) + run.start + 1, shift, ends, n); break;
          default:
            for (int64_t i = 0; i < n; ++i) ends[i] = shift + column.begin(run.start + i + 1);
        }
        ends += n;
        total = shift + column.begin(run.stop);
      }
      return total;
    }
    const auto visit = [&](int chunk, const Column& column, int64_t row, int64_t j) {
      const int64_t n = clean_ ? column.begin(row + 1) - column.begin(row) : length(chunk, column, row, fault);
      if (n < 0) return false;
      ends[j] = total += n;
      return true;
    };
    return each_row(visit) ? total : -1;
  }

  // Pass 1 of a feature with a promised number of ids per row: false on a row that breaks the promise.
  bool holds(int64_t hotness, Fault& fault) const {
    const auto shaped = [&](const Chunk* chunk) {
      const Column& column = chunk->column(field_.column);
      return column.shape != Shape::List32 && column.shape != Shape::List64 && column.width == hotness;
    };
    if (std::all_of(chunks_.begin(), chunks_.end(), shaped)) return true;
    return each_row([&](int chunk, const Column& column, int64_t row, int64_t) {
      const int64_t n = length(chunk, column, row, fault);
      if (n < 0) return false;
      if (n != hotness) fault = {Fault::What::Width, field_.column, chunk, row, n, hotness};
      return n == hotness;
    });
  }

  // Pass 2: the ids themselves; false on a fault.
  bool write(int64_t* out, Fault& fault) const {
    if (clean_) return rows_.row_of == nullptr ? copy_runs(out) : copy_rows(out);
    const auto visit = [&](int chunk, const Column& column, int64_t row, int64_t) {
      if (column.is_null(row)) {
        if (field_.null == Null::Error) return fail(fault, Fault::What::NullRow, chunk, row);
        if (field_.null == Null::Default) out = std::copy(field_.row_default.begin(), field_.row_default.end(), out);
        return true;
      }
      for (int64_t e = column.begin(row), end = column.begin(row + 1); e < end; ++e) {
        if (!column.values.is_null(e)) {
          *out++ = element<int64_t>(column.values, e);
        } else if (field_.element_null == Null::Default) {
          *out++ = field_.element_default;
        } else if (field_.element_null == Null::Error) {
          return fail(fault, Fault::What::NullElement, chunk, row);
        }
      }
      return true;
    };
    return each_row(visit);
  }

  // One float per id. A null row's default ids weigh 1; a dropped element drops its weight.
  bool write_weights(float* out, Fault& fault) const {
    const auto visit = [&](int chunk, const Column& column, int64_t row, int64_t) {
      if (column.is_null(row)) {
        if (field_.null == Null::Default) out = std::fill_n(out, field_.row_default.size(), 1.0f);
        return true;
      }
      const Column& weights = chunks_[chunk]->column(field_.weights);
      const int64_t begin = column.begin(row), n = column.begin(row + 1) - begin;
      const int64_t first = weights.begin(row), found = weights.is_null(row) ? 0 : weights.begin(row + 1) - first;
      if (found != n) {
        fault = {Fault::What::WeightCount, field_.weights, chunk, row, found, n};
        return false;
      }
      for (int64_t i = 0; i < n; ++i) {
        if (column.values.is_null(begin + i) && field_.element_null == Null::Empty) continue;
        if (weights.values.is_null(first + i)) {
          fault = {Fault::What::NullElement, field_.weights, chunk, row, 0, 0};
          return false;
        }
        *out++ = element<float>(weights.values, first + i);
      }
      return true;
    };
    return each_row(visit);
  }

 private:
  template <typename Visit>
  bool each_row(Visit&& visit) const {
    if (rows_.row_of != nullptr) {
      for (int64_t j = 0; j < rows_.count; ++j) {
        const int chunk = rows_.chunk_of[j];
        if (!visit(chunk, chunks_[chunk]->column(field_.column), rows_.row_of[j], j)) return false;
      }
      return true;
    }
    int64_t j = 0;
    for (const Run& run : rows_.runs) {
      const Column& column = chunks_[run.chunk]->column(field_.column);
      for (int64_t row = run.start; row < run.stop; ++row, ++j)
        if (!visit(static_cast<int>(run.chunk), column, row, j)) return false;
    }
    return true;
  }

  bool fail(Fault& fault, Fault::What what, int chunk, int64_t row) const {
    fault = {what, field_.column, chunk, row, 0, 0};
    return false;
  }

  int64_t length(int chunk, const Column& column, int64_t row, Fault& fault) const {
    if (column.is_null(row)) {
      if (field_.null == Null::Error) return fail(fault, Fault::What::NullRow, chunk, row), -1;
      return field_.null == Null::Default ? static_cast<int64_t>(field_.row_default.size()) : 0;
    }
    const int64_t begin = column.begin(row), end = column.begin(row + 1);
    if (field_.element_null != Null::Empty || column.values.validity == nullptr) return end - begin;
    int64_t n = 0;
    for (int64_t e = begin; e < end; ++e) n += !column.values.is_null(e);
    return n;
  }

  bool copy_runs(int64_t* out) const {
    for (const Run& run : rows_.runs) {
      const Column& column = chunks_[run.chunk]->column(field_.column);
      const int64_t begin = column.begin(run.start), n = column.begin(run.stop) - begin;
      convert(column.values, begin, n, out);
      out += n;
    }
    return true;
  }

  bool copy_rows(int64_t* out) const {
    const auto is = [&](Shape shape) {
      return std::all_of(chunks_.begin(), chunks_.end(), [&](const Chunk* chunk) {
        const Column& column = chunk->column(field_.column);
        return column.shape == shape && column.values.kind == Kind::Int64;
      });
    };
    if (is(Shape::Scalar)) {
      gather_scalars(bases<int64_t>(chunks_, field_.column).data(), rows_, out, 1);
    } else if (is(Shape::List32)) {
      copy_lists(out);
    } else {
      for (int64_t j = 0; j < rows_.count; ++j) {
        const Column& column = chunks_[rows_.chunk_of[j]]->column(field_.column);
        const int64_t begin = column.begin(rows_.row_of[j]), n = column.begin(rows_.row_of[j] + 1) - begin;
        convert(column.values, begin, n, out);
        out += n;
      }
    }
    return true;
  }

  // Lists of a shuffled window lie all over memory: the lines of row j + kAhead are asked for while row j is copied.
  // Short lists are copied in whole words of 32 bytes. What that writes too much, the next row overwrites (the section
  // ends with room for it); it is not done where it would read beyond the column.
  void copy_lists(int64_t* out) const {
    constexpr int64_t kAhead = 12;
    struct Source {
      const int32_t* offsets;
      const int64_t* values;
      int64_t end;
    };
    std::vector<Source> sources;
    for (const Chunk* chunk : chunks_) {
      const Column& column = chunk->column(field_.column);
      sources.push_back({static_cast<const int32_t*>(column.offsets), static_cast<const int64_t*>(column.values.data),
                         column.begin(chunk->rows())});
    }
    for (int64_t j = 0; j < rows_.count; ++j) {
      if (j + kAhead < rows_.count) {
        const Source& next = sources[rows_.chunk_of[j + kAhead]];
        const int64_t* lines = next.values + next.offsets[rows_.row_of[j + kAhead]];
        for (int line = 0; line < 3; ++line) __builtin_prefetch(lines + 8 * line);
      }
      const Source& source = sources[rows_.chunk_of[j]];
      const int64_t begin = source.offsets[rows_.row_of[j]], end = source.offsets[rows_.row_of[j] + 1];
      const int64_t* in = source.values + begin;
      if (end - begin > 64 || end + kWord > source.end) {
        std::memcpy(out, in, (end - begin) * sizeof(int64_t));
      } else {
        for (int64_t i = 0; i < end - begin; i += kWord) std::memcpy(out + i, in + i, kWord * sizeof(int64_t));
      }
      out += end - begin;
    }
  }

  const IdField& field_;
  const Chunks& chunks_;
  const RowChoice& rows_;
  bool clean_ = true;  // no null anywhere: lengths are differences of offsets, ids are copied as they lie
};

}  // namespace hybridrec
