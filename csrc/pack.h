// Packing: rows of several chunks -> one feature-major id block, its offsets and weights, and dense matrices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "arena.h"
#include "chunk.h"

namespace hybridrec {

using Chunks = std::vector<const Chunk*>;

enum class Null : uint8_t { Error, Default, Empty };

struct IdField {
  int column;
  int64_t hotness;                // fixed ids per row, or -1: ragged
  Null null;                      // of a missing row; Default puts `row_default` in its place
  Null element_null;              // of a missing element in a list; Default puts `element_default`
  std::vector<int64_t> row_default;
  int64_t element_default;
  int weights;                    // column with one float per id, or -1
};

struct DenseField {
  int column;
  int matrix;  // 0 dense, 1 label, 2 sample weight
  int64_t at, width;
  Null null;
  std::vector<float> row_default;  // [width]; of a missing element too, by its place
};

// What went wrong, where: the caller knows the names of columns and files.
struct Fault {
  enum class What : uint8_t { NullRow, NullElement, WeightCount, Width } what;
  int column;
  int chunk;
  int64_t row;
  int64_t found, wanted;
};

// The rows of a batch, in order: row j is row_of[j] of chunk chunk_of[j]; without arrays, the runs one after another.
struct Run {
  int64_t chunk, start, stop;
};
struct RowChoice {
  int64_t count;
  std::vector<Run> runs;
  const int32_t* chunk_of = nullptr;
  const int32_t* row_of = nullptr;

  // visit(chunk, row, j) for each row, until one answers false; whether none did.
  template <typename Visit>
  bool each(Visit&& visit) const {
    if (row_of != nullptr) {
      for (int64_t j = 0; j < count; ++j)
        if (!visit(chunk_of[j], row_of[j], j)) return false;
      return true;
    }
    int64_t j = 0;
    for (const Run& run : runs)
      for (int64_t row = run.start; row < run.stop; ++row, ++j)
        if (!visit(static_cast<int>(run.chunk), row, j)) return false;
    return true;
  }
};

// Byte offsets of the sections inside the block; each begins on a cache line.
struct Layout {
  size_t offsets, values, weights, matrix[3], bytes;
};

struct Packed {
  std::unique_ptr<Arena::Block> block;
  Layout layout;
  std::vector<int64_t> starts;  // [F + 1]
};

class Packer {
 public:
  Packer(std::vector<IdField> ids, std::vector<DenseField> dense);
  // Fills `out`, or says what is wrong with the input and leaves it empty.
  std::optional<Fault> pack(const Chunks& chunks, const RowChoice& rows, Arena& arena, Packed& out) const;

 private:
  std::vector<IdField> ids_;
  std::vector<DenseField> dense_;
  int64_t ragged_ = 0;
  int64_t width_[3] = {0, 0, 0};
  bool weighted_ = false;
};

}  // namespace hybridrec
