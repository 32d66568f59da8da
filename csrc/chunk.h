// A chunk: the columns of one decoded Arrow record batch, as flat pointers that the packer reads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arrow_abi.h"

namespace hybridrec {

enum class Kind : uint8_t { Int8, UInt8, Int16, UInt16, Int32, UInt32, Int64, UInt64, Half, Float, Double, Bool };
enum class Shape : uint8_t { Scalar, List32, List64, Fixed };

inline bool bit(const uint8_t* bits, int64_t i) { return (bits[i >> 3] >> (i & 7)) & 1; }

// A run of primitive values. Element i is data[i] (for Bool: bit offset + i), null where validity says so.
struct Values {
  Kind kind = Kind::Int64;
  const void* data = nullptr;
  const uint8_t* validity = nullptr;
  int64_t offset = 0;  // added to i for the bitmaps; already applied to data, Bool excepted

  bool is_null(int64_t i) const { return validity != nullptr && !bit(validity, offset + i); }
};

struct Column {
  Shape shape = Shape::Scalar;
  int64_t width = 1;              // Fixed: elements per row
  const void* offsets = nullptr;  // List32, List64: [rows + 1], the slice's offset applied
  const uint8_t* validity = nullptr;
  int64_t validity_offset = 0;
  Values values;  // Scalar: row i is element i. Fixed: row i starts at element i * width

  bool is_null(int64_t row) const { return validity != nullptr && !bit(validity, validity_offset + row); }
  int64_t begin(int64_t row) const {
    switch (shape) {
      case Shape::List32: return static_cast<const int32_t*>(offsets)[row];
      case Shape::List64: return static_cast<const int64_t*>(offsets)[row];
      default: return row * width;
    }
  }
};

// Hashes of the dictionaries seen so far in one row group, a slot per column. Chunk after chunk of a group carries
// the same dictionary, or a longer one with the same beginning: only what is new gets hashed.
class HashCache {
 public:
  const std::vector<int64_t>& hashes(size_t column, const ArrowArray& dictionary, bool wide, uint64_t seed);

 private:
  struct Slot {
    std::string bytes;
    std::vector<int64_t> ends;  // of entry i in bytes
    std::vector<int64_t> hashes;
  };
  std::vector<Slot> slots_;
};

class Chunk {
 public:
  // Takes over the struct array of a record batch. String columns become their XXH64.
  Chunk(ArrowSchema* schema, ArrowArray* array, HashCache& cache, uint64_t seed);
  ~Chunk();
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  const Column& column(size_t i) const { return columns_[i]; }
  size_t columns() const { return columns_.size(); }
  int64_t rows() const { return array_.length; }

 private:
  Column import(size_t index, const ArrowSchema& schema, const ArrowArray& array, HashCache& cache, uint64_t seed);
  Values leaf(size_t index, const ArrowSchema& schema, const ArrowArray& array, int64_t first, int64_t last,
              HashCache& cache, uint64_t seed);

  ArrowArray array_;
  std::vector<Column> columns_;
  std::vector<std::unique_ptr<int64_t[]>> owned_;  // ids made from strings
};

}  // namespace hybridrec
