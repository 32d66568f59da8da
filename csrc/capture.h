// The rows of a table as they were at one moment, to be read while training goes on: who changes a row that was not
// read yet first hands it over. So the moment costs no more than a copy of the records (id and score) of the rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rows.h"

namespace hybridrec {

class Table;

// The ids and scores of slots [0, slots), as they were; a fixed table has none, there a slot is an id.
struct Records {
  uint64_t slots = 0;
  int64_t stride = 0;
  Pages data;

  bool used(uint32_t slot) const;  // by a row; one that has expired is there until it is removed
  int64_t id(uint32_t slot) const;
  uint32_t touched(uint32_t slot) const;
  uint32_t count(uint32_t slot) const;  // 0 where the table does not count
};

class Capture {
 public:
  explicit Capture(std::shared_ptr<Table> table);  // waits for the table's lock, alone
  ~Capture();
  Capture(const Capture&) = delete;

  const Records& records() const { return records_; }
  size_t kept_bytes() const { return used_ * kept_row_; }

  // The rows in these slots, which ascend from call to call, in the type of the table, and their state.
  void gather(const uint32_t* slots, int64_t n, uint8_t* rows, const std::vector<float*>& states);

  // These rows are about to change. Under the lock held alone; several threads at once, with different slots.
  void keep(const uint32_t* slots, int64_t n);
  void keep_all();  // the table is about to change as a whole

 private:
  static constexpr uint64_t kBlockRows = 4096;
  uint8_t* kept(uint32_t place) const { return blocks_[place / kBlockRows].data() + place % kBlockRows * kept_row_; }
  bool wanted(uint32_t slot) const { return slot >= passed_ && slot < records_.slots && places_[slot] == 0; }

  const std::shared_ptr<Table> table_;
  Records records_;
  std::vector<int64_t> widths_;  // of the state
  int64_t kept_row_;             // bytes of a row and its state
  Pages place_pages_;
  uint32_t* places_;      // by slot: 1 + where its row is kept, or 0
  uint64_t passed_ = 0;   // slots below were read
  std::atomic<uint64_t> used_{0};
  std::mutex growing_;
  std::vector<Pages> blocks_;  // never moves
};

}  // namespace hybridrec
