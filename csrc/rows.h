// Memory of a table's rows and of their optimizer state: slabs behind a directory, so that a table grows without
// moving a row, and a row's address is two loads away from its slot. A fixed table is one slab.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "home.h"
#include "simd.h"

namespace hybridrec {

constexpr uint32_t kMissing = 0xFFFFFFFFu;  // the slot of an id that has no row: zeros, no gradient

// Page-aligned memory that the operating system fills with zeros on first touch, in huge pages where it has them.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);
  Pages(uint8_t* lent, size_t bytes) : data_(lent), bytes_(bytes), lent_(true) {}  // memory that is somebody else's
  ~Pages();
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept;

  void touch() const;  // now; what is there stays
  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  bool lent_ = false;
};

enum class RowType { F32, F16, BF16 };
enum class Init { Uniform, Normal, Constant };

struct RowSpec {
  uint64_t key;  // of the table's random draws
  int64_t dim;
  RowType type;
  Init init;
  double scale;
  // Of a part of a table: slot s has the row of id first + s * stride, and its columns begin at `column`. Draws depend
  // on the id and the column in the whole table.
  int64_t first = 0, stride = 1, column = 0;

  HYBRIDREC_INLINE int64_t id_of(uint32_t slot) const { return first + static_cast<int64_t>(slot) * stride; }
  HYBRIDREC_INLINE int64_t row_bytes() const { return dim * (type == RowType::F32 ? 4 : 2); }
};

// Equal records in slabs of 1 << bits of them.
struct Column {
  uint8_t** slabs;
  int64_t stride;  // bytes of a record
  uint32_t bits;

  HYBRIDREC_INLINE uint8_t* at(uint32_t slot) const {
    const uint64_t s = slot;
    return slabs[s >> bits] + static_cast<int64_t>(s & ((uint64_t{1} << bits) - 1)) * stride;
  }
};

// Rows [0, size()) with one column of weights and one column per optimizer state.
class Rows {
 public:
  Rows(const RowSpec& spec, uint64_t most, bool one_slab, Home* home = nullptr);

  const RowSpec& spec() const { return spec_; }
  uint64_t size() const { return size_; }
  uint64_t most() const { return most_; }

  void grow(uint64_t size);  // adds slabs so that `size` rows exist; rows already there do not move
  void view(uint8_t* data, uint64_t size);  // in place of own memory: rows that lie elsewhere, side by side
  void touch() const;        // the memory of all of them
  // Optimizer state: widths[k] floats per row, each fills[k] in a row that has not been updated.
  void attach(std::vector<int64_t> widths, std::vector<float> fills);
  void reopen(uint64_t size, std::vector<int64_t> widths, std::vector<float> fills);  // what is at home already
  int states() const { return static_cast<int>(widths_.size()); }
  int64_t width(int k) const { return widths_[k]; }
  float fill(int k) const { return fills_[k]; }

  Column column() const { return {directory(0), spec_.row_bytes(), bits_}; }
  Column state(int k) const { return {directory(k + 1), 4 * widths_[k], bits_}; }
  // The first slab of a state: who views it keeps it, also when the state is replaced.
  std::shared_ptr<Pages> state_pages(int k) const { return slabs_[k + 1].front(); }

  // Gives rows `slots` the initial values of `ids`, and their state its fill. Uses the thread pool.
  void init(const uint32_t* slots, const int64_t* ids, int64_t n);
  void init_all();  // every row of a fixed table
  // Rows [first, first + n), values in their own type and state as it is, null for its fill. Uses the thread pool.
  void write(uint64_t first, int64_t n, const uint8_t* values, const std::vector<const float*>& states);

  int64_t row_bytes() const { return spec_.row_bytes(); }
  int64_t state_bytes() const;                // of one row
  size_t allocated() const;                   // bytes of all slabs

 private:
  uint8_t** directory(int column) const { return reinterpret_cast<uint8_t**>(directories_[column].data()); }
  void add_slabs(int column, int64_t stride, uint64_t count);
  void add_states(std::vector<int64_t> widths, std::vector<float> fills);
  void fill_state(int k, uint64_t first, uint64_t last);

  Home* home_;
  RowSpec spec_;
  uint64_t most_, size_ = 0;
  uint32_t bits_;
  uint64_t slab_rows_;  // rows of a slab: 1 << bits_, or `most` of a table that is smaller than that
  std::vector<Pages> directories_;  // weights, then each state; sized for `most` rows, so that they never move
  std::vector<std::vector<std::shared_ptr<Pages>>> slabs_;
  std::vector<int64_t> widths_;
  std::vector<float> fills_;
};

// The initial rows of ids, side by side in their own type. Uses the thread pool.
void initial_rows(const RowSpec& spec, const int64_t* ids, int64_t n, uint8_t* to);

RowType row_type(const std::string& name);
Init init_kind(const std::string& name);

}  // namespace hybridrec
