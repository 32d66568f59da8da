// One id feature of a batch: its offsets, ids and weights, from rows of several chunks.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "by_chunk.h"
#include "cells.h"
#include "convert.h"
#include "pack.h"

namespace hybridrec {

constexpr int64_t kWord = 4;  // ids copied at once

// Offsets of one run, moved to where the run lies in the batch.
template <typename In>
HYBRIDREC_SIMD void shift_run(const In* in, int64_t shift, int64_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] + shift;
}

// One id feature of one batch: by runs or chunk by chunk where each row has the same number of ids, else row by row.
class IdWriter {
 public:
  IdWriter(const IdField& field, const Chunks& chunks, const RowChoice& rows, const ByChunk* by_chunk)
      : field_(field), chunks_(chunks), rows_(rows), by_chunk_(by_chunk) {
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
    const auto visit = [&](int chunk, int64_t row, int64_t j) {
      const Column& column = chunks_[chunk]->column(field_.column);
      const int64_t n = clean_ ? column.begin(row + 1) - column.begin(row) : length(chunk, column, row, fault);
      if (n < 0) return false;
      ends[j] = total += n;
      return true;
    };
    return rows_.each(visit) ? total : -1;
  }

  // Pass 2: the ids themselves; false on a fault.
  bool write(int64_t* out, Fault& fault) const {
    if (field_.hotness >= 0) return write_even(out, fault);
    if (clean_) return rows_.row_of == nullptr ? copy_runs(out) : copy_rows(out);
    return rows_.each([&](int chunk, int64_t row, int64_t) {
      const Column& column = chunks_[chunk]->column(field_.column);
      if (column.is_null(row)) {
        if (field_.null == Null::Error) return fail(fault, Fault::What::NullRow, chunk, row);
        if (field_.null == Null::Default) out = std::copy(field_.row_default.begin(), field_.row_default.end(), out);
        return true;
      }
      const int64_t begin = column.begin(row), end = column.begin(row + 1);
      if (column.values.validity == nullptr) {
        convert(column.values, begin, end - begin, out);
        out += end - begin;
        return true;
      }
      for (int64_t e = begin; e < end; ++e) {
        if (!column.values.is_null(e)) {
          *out++ = element<int64_t>(column.values, e);
        } else if (field_.element_null == Null::Default) {
          *out++ = field_.element_default;
        } else if (field_.element_null == Null::Error) {
          return fail(fault, Fault::What::NullElement, chunk, row);
        }
      }
      return true;
    });
  }

  // One float per id. A null row's default ids weigh 1; a dropped element drops its weight.
  bool write_weights(float* out, Fault& fault) const {
    return rows_.each([&](int chunk, int64_t row, int64_t) {
      const Column& column = chunks_[chunk]->column(field_.column);
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
    });
  }

 private:
  // A feature with as many ids in each row.
  bool write_even(int64_t* out, Fault& fault) const {
    StandIn<int64_t> missing{field_.null == Null::Default, field_.element_null == Null::Default, field_.row_default};
    missing.values.resize(field_.hotness);
    const Cells<int64_t> cells(chunks_, field_.column, field_.hotness, std::move(missing));
    bool good = true;
    if (by_chunk_ == nullptr) {
      for (const Run& run : rows_.runs) {
        good = good && cells.run(run.chunk, run.start, run.stop, out, field_.hotness);
        out += (run.stop - run.start) * field_.hotness;
      }
    } else {
      by_chunk_->each([&](size_t chunk, const uint32_t* rows, const uint32_t* places, int64_t n) {
        good = good && cells.gather(chunk, rows, places, n, out, field_.hotness);
      });
    }
    if (!good) fault = cells.fault_in(rows_);
    return good;
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
    const bool lists = std::all_of(chunks_.begin(), chunks_.end(), [&](const Chunk* chunk) {
      const Column& column = chunk->column(field_.column);
      return column.shape == Shape::List32 && column.values.kind == Kind::Int64;
    });
    if (lists) {
      copy_lists(out);
      return true;
    }
    return rows_.each([&](int chunk, int64_t row, int64_t) {
      const Column& column = chunks_[chunk]->column(field_.column);
      const int64_t begin = column.begin(row), n = column.begin(row + 1) - begin;
      convert(column.values, begin, n, out);
      out += n;
      return true;
    });
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
  const ByChunk* by_chunk_;  // of a gathered batch
  bool clean_ = true;  // no null anywhere: lengths are differences of offsets, ids are copied as they lie
};

}  // namespace hybridrec
