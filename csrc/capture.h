// The rows of a table as they were at one moment, to be read while training goes on: who changes a row or its record
// that was not read yet first hands it over. So the moment itself copies nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "rows.h"

namespace hybridrec {

class Table;

// Where rows of a capture go. A fixed table has no scores, and leaves them as they are.
struct Columns {
  int64_t *ids, *touched, *counts;
  uint8_t* rows;  // in the type of the table
  std::vector<float*> states;
};

class Capture {
 public:
  explicit Capture(std::shared_ptr<Table> table);  // waits for the table's lock, alone
  ~Capture();
  Capture(const Capture&) = delete;

  uint64_t slots() const { return slots_; }
  // Those of slots [first, last) that had a row; one that had expired is there until it is removed.
  std::vector<uint32_t> used(uint64_t first, uint64_t last) const;
  // All of the rows in these slots, which ascend from call to call.
  void read(const uint32_t* slots, int64_t n, const Columns& to);

  // These rows and records are about to change. Under the lock held alone; several threads, with different slots.
  void keep(const uint32_t* slots, int64_t n);
  void keep_all();  // the table is about to change as a whole
  // Only the scores in this record are. Under the shared lock; several threads, also with the same slot.
  void keep_scores(uint32_t slot, uint8_t* record);
  void prefetch_scores(uint32_t slot) const { __builtin_prefetch(touched_ + std::min<uint64_t>(slot, slots_)); }

 private:
  struct Scores {
    uint32_t touched, count;
  };
  uint8_t* kept(uint32_t place) const { return blocks_[place / block_rows_].data() + place % block_rows_ * kept_row_; }
  bool ahead(uint32_t slot) const { return slot >= passed_.load(std::memory_order_acquire) && slot < slots_; }
  bool wanted(uint32_t slot) const { return ahead(slot) && places_[slot] == 0; }
  bool had_row(uint32_t slot) const;
  void keep_batch(const uint32_t* slots, int64_t n);
  void fetch(uint32_t slot) const;  // what keeping it will read
  Scores scores(uint32_t slot, uint8_t* record) const;

  const std::shared_ptr<Table> table_;
  uint64_t slots_;
  int64_t record_;               // bytes of the table's records, 0 where it has none
  std::vector<int64_t> widths_;  // of the state
  int64_t kept_row_;             // bytes of an id, a row and its state
  uint64_t block_rows_, block_bytes_;
  Pages place_pages_, touched_pages_, count_pages_;
  // By slot. Zeros, which take no memory, mean that the table has it still.
  uint32_t* places_;   // 1 + where its id and row are kept, kNothing where it had no row
  uint32_t* touched_;  // 1 + when it was last seen
  uint32_t* counts_;   // how often, where touched_ is there
  std::atomic<uint64_t> passed_{0};  // slots below were read
  std::atomic<uint64_t> used_{0};
  std::mutex growing_;
  std::vector<Pages> blocks_;  // never moves
};

}  // namespace hybridrec
