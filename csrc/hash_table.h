// A table of unbounded int64 ids: rows come when training first sees an id, and go by the table's eviction policy when
// there is no room for new ones. Beside its row and optimizer state, a row has a record of its id and when it was last
// seen (12 bytes; 16 with the count of LFU) and an entry of the index (5.3 bytes, over a load of 0.67 to 0.83).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hash_index.h"
#include "home.h"
#include "records.h"
#include "sketch.h"
#include "table.h"

namespace hybridrec {

enum class Eviction { None, Lru, Lfu, Ttl };

struct Policy {
  uint64_t capacity;     // rows; beyond 2^32 - 2 there are never more than that
  Eviction eviction;
  uint32_t ttl_steps;    // Ttl: a row not seen for more than this many steps is gone
  double probability;    // that an id is ever admitted: a draw by id
  uint32_t min_count;    // occurrences before an id is admitted, at most 65535
};

// Lookups are of training, one per occurrence of an id; inserted, evicted and expired are rows.
struct Counters {
  int64_t hits, misses, inserted, refused, evicted, expired, dropped;
};

// Bytes, beyond rows and optimizer state.
struct Memory {
  size_t keys, scores, index, sketch;
  size_t slack;  // of records that no row has yet: reserved, not touched

  double per_row(int64_t rows) const { return rows == 0 ? 0 : static_cast<double>(keys + scores + index) / rows; }
};

// Under the shared lock: what is const here, find and verify. Under the lock held alone: the rest.
class HashTable : public Table {
 public:
  HashTable(const RowSpec& spec, const Policy& policy, std::unique_ptr<Home> home = nullptr);

  int64_t size() const override { return static_cast<int64_t>(now_->size); }  // expired rows count until they are removed
  uint64_t slots() const override { return now_->given; }
  Column records() const override { return {const_cast<uint8_t**>(slabs_.data()), stride_, kSlabBits}; }
  bool counted() const override { return policy_.eviction == Eviction::Lfu; }
  const Policy& policy() const { return policy_; }

  // Training steps seen. A row touched at the present clock is pinned: it is not evicted. It moves under the lock alone.
  uint32_t clock() const { return figures_->clock.load(std::memory_order_relaxed); }
  void advance() { figures_->clock.fetch_add(1, std::memory_order_relaxed); }
  void set_clock(uint32_t clock) { figures_->clock.store(clock, std::memory_order_relaxed); }

  // Fills span.slots, with kMissing for absent ids, and returns how many those are. Training lookups touch the rows
  // and count. Many threads at once may do this, each with a span of its own.
  int64_t find(const IdSpan& span, bool train);
  // The same once more for training, but nothing counts: rows may have gone, or the clock moved, since.
  void find_again(const IdSpan& span);

  // Gives slots to the ids whose slot is kMissing, in order of spans and positions, if they are admitted; makes room
  // for them first; the caller fills the rows born. std::length_error if too many rows are pinned for that; the table is then as it was.
  Born admit(const std::vector<IdSpan>& spans);
  // The same for all of `ids`, admitted or not. Without eviction, std::length_error if there is no room.
  Born put(const int64_t* ids, int64_t n, uint32_t* slots);

  // Rows that have gone so far, for whatever reason. While this stands still, slots found belong to their ids.
  uint64_t removals() const { return now_->removals; }
  // Slots that belong to their id no longer become kMissing, counted as dropped gradients; returns how many.
  int64_t verify(const IdSpan& span);

  // Bulk restore: room for so many rows in a table that is emptied first; then rows at the next slots, which the caller
  // gives their values; counts may be null, for 1 each. The position of an id that was there before, and then the table is empty; else -1.
  void make_room(uint64_t rows);  // takes the memory for it before, which is most of the work; the table stays as it is
  void reserve_empty(uint64_t rows);
  int64_t append(const int64_t* ids, const int64_t* touched, const int64_t* counts, int64_t n);
  void whole();  // all of it is there

  std::vector<uint32_t> live() const;  // slots in ascending order of id, without expired rows
  // Of live slots.
  int64_t id_of(uint32_t slot) const;
  uint32_t touched(uint32_t slot) const;
  uint32_t count(uint32_t slot) const;  // 0 but under LFU
  void set_score(uint32_t slot, uint32_t touched, uint32_t count);

  void erase(const int64_t* ids, int64_t n);  // pinned or not; ids that are not there are passed over
  void clear();                               // rows and sketch; clock and counters stay
  void reopen(std::vector<int64_t> widths, std::vector<float> fills);  // with the rows that it has at home
  // The way from ids to slots alone, where records come from elsewhere.
  void index_rows(const std::vector<std::pair<int64_t, uint32_t>>& rows);
  void unindex_rows(const std::vector<std::pair<int64_t, uint32_t>>& rows);

  Counters counters() const;
  Memory memory() const;
  Sketch* sketch() const { return sketch_.get(); }  // null where there is no minimum count

 private:
  struct Keys;
  struct Wanted;
  struct Choice;

  template <typename Visit>
  void each(Visit visit) const;

  bool expired(uint32_t touched) const { return int64_t{clock()} - touched > lifetime_; }
  bool drawn(int64_t id) const;
  void touch(uint8_t* record, uint32_t now, uint32_t times) const;
  void touch_all(const IdSpan& span, uint32_t times) const;
  Born give(const std::vector<IdSpan>& spans, bool force);
  Choice choose(const Wanted& wanted, bool force);
  Born bear(const Wanted& wanted, Choice& choice);
  std::vector<uint32_t> lowest(uint64_t needed, const std::vector<uint32_t>& kept) const;
  void evict(const std::vector<uint32_t>& slots);
  void reserve(uint64_t rows);
  void empty();
  uint32_t take(int64_t id);
  void begin(uint32_t slot, int64_t id, uint32_t times);
  void remove(uint32_t slot);

  static constexpr uint32_t kSlabBits = 16;

  const Policy policy_;
  const int64_t stride_;    // bytes of a record
  const int64_t lifetime_;  // steps after which a row is gone; more than there are but under Ttl
  const uint64_t drawn_;    // ids whose 32-bit draw is below are admitted
  HashIndex index_;
  std::unique_ptr<Sketch> sketch_;
  Standing standing_;
  Standing* const now_;
  Figures own_figures_;
  Figures* const figures_;
  std::vector<Pages> pages_;
  std::vector<uint8_t*> slabs_;
};

struct HashTable::Keys {
  Column records;

  int64_t operator()(uint32_t slot) const { return record::id_in(records.at(slot)); }
  HYBRIDREC_INLINE void prefetch(uint32_t slot) const { __builtin_prefetch(records.at(slot)); }
};

template <typename Visit>
void HashTable::each(Visit visit) const {
  const uint64_t slab = uint64_t{1} << kSlabBits;
  for (uint64_t first = 0; first < now_->given; first += slab) {
    uint8_t* at = slabs_[first >> kSlabBits];
    for (uint64_t slot = first; slot < std::min(now_->given, first + slab); ++slot, at += stride_)
      if (record::get(record::touched_in(at)) != record::kFree) visit(static_cast<uint32_t>(slot), at);
  }
}

Eviction eviction_kind(const std::string& name);

}  // namespace hybridrec
