// Dense columns of a batch: numbers and fixed-size lists into row-major float matrices.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "by_chunk.h"
#include "cells.h"
#include "convert.h"
#include "pack.h"

namespace hybridrec {

// All dense fields of a batch into its matrices. Blocks of rows are filled column by column in the cache, and then go to
// the matrices in one piece, or row by row if the batch is gathered.
class DenseWriter {
 public:
  DenseWriter(const std::vector<DenseField>& fields, const Chunks& chunks, const int64_t widths[3])
      : fields_(fields),
        widths_(widths),
        run_rows_(std::clamp<int64_t>(kBytes / sizeof(float) / std::max<int64_t>(all_of(widths), 1), 1, kRows)),
        order_(kRows) {
    for (int m = 0; m < 3; ++m) blocks_[m].resize(kRows * widths[m]);
    std::iota(order_.begin(), order_.end(), 0);
    for (const DenseField& field : fields) {
      const bool fills = field.null != Null::Error;
      StandIn<float> missing{fills, fills, field.row_default};
      missing.values.resize(field.width);
      cells_.emplace_back(chunks, field.column, field.width, std::move(missing));
    }
  }

  // False on a fault.
  bool write(const RowChoice& rows, const ByChunk* by_chunk, float* const matrices[3], Fault& fault) {
    return by_chunk == nullptr ? write_runs(rows, matrices, fault) : write_rows(rows, *by_chunk, matrices, fault);
  }

 private:
  static constexpr int64_t kRows = 512;        // of a block, at most
  static constexpr int64_t kBytes = 32 << 10;  // of one whose rows are neighbours: it stays in the nearest cache

  static int64_t all_of(const int64_t widths[3]) { return widths[0] + widths[1] + widths[2]; }

  bool write_runs(const RowChoice& rows, float* const matrices[3], Fault& fault) {
    int64_t at = 0;
    for (const Run& run : rows.runs)
      for (int64_t start = run.start; start < run.stop; start += run_rows_) {
        const int64_t n = std::min(run.stop - start, run_rows_);
        const auto fill = [&](size_t f, float* out) {
          return cells_[f].run(run.chunk, start, start + n, out, width(f));
        };
        if (!fill_block(fill, rows, fault)) return false;
        for (int m = 0; m < 3; ++m)
          if (widths_[m] > 0) stream_copy(matrices[m] + at * widths_[m], blocks_[m].data(), n * widths_[m] * sizeof(float));
        at += n;
      }
    return true;
  }

  bool write_rows(const RowChoice& rows, const ByChunk& by_chunk, float* const matrices[3], Fault& fault) {
    bool good = true;
    const auto block = [&](size_t chunk, const uint32_t* from, const uint32_t* places, int64_t n) {
      const auto fill = [&](size_t f, float* out) {
        return cells_[f].gather(chunk, from, order_.data(), n, out, width(f));
      };
      if (!good || !(good = fill_block(fill, rows, fault))) return;
      for (int m = 0; m < 3; ++m) {
        if (widths_[m] == 0) continue;
        for (int64_t i = 0; i < n; ++i)
          std::memcpy(matrices[m] + places[i] * widths_[m], blocks_[m].data() + i * widths_[m],
                      widths_[m] * sizeof(float));
      }
    };
    by_chunk.each(block, kRows);
    return good;
  }

  template <typename Fill>
  bool fill_block(Fill fill, const RowChoice& rows, Fault& fault) {
    for (size_t f = 0; f < fields_.size(); ++f) {
      if (fill(f, blocks_[fields_[f].matrix].data() + fields_[f].at)) continue;
      fault = cells_[f].fault_in(rows);
      return false;
    }
    return true;
  }

  int64_t width(size_t field) const { return widths_[fields_[field].matrix]; }

  const std::vector<DenseField>& fields_;
  const int64_t* widths_;
  const int64_t run_rows_;  // of a block, where rows are neighbours
  std::vector<Cells<float>> cells_;
  std::vector<float> blocks_[3];
  std::vector<uint32_t> order_;  // 0, 1, 2, ...: rows of a block lie as they are gathered
};

}  // namespace hybridrec
