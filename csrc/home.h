// Where a dynamic table lies that is not in plain memory, and who keeps what is about to change. Tables in plain memory
// have none.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace hybridrec {

class HashTable;

// What a dynamic table knows of itself as a whole. It changes only within a change (see Change in table.h).
struct Standing {
  uint64_t size = 0, given = 0;  // rows there are; slots ever given away
  uint64_t removals = 0;
  uint32_t free = 0xFFFFFFFFu;  // the slot given back last, whose record names the one before
  uint32_t unused = 0;
};

// What moves with lookups too.
struct Figures {
  std::atomic<uint32_t> clock{0};
  uint32_t unused = 0;
  std::atomic<int64_t> hits{0}, misses{0}, inserted{0}, refused{0}, evicted{0}, expired{0}, dropped{0};
};

// A part of an index: `count` buckets at `at`, of which `used` entries.
struct Stripe {
  uint64_t at;
  uint32_t count, used;
};

// Who a change came from, and two numbers of his own: of his last change, they are the table's.
struct Tag {
  uint64_t source, first, second;
};

class Home {
 public:
  virtual ~Home() = default;
  virtual bool read_only() const = 0;

  // Memory, which stays where it is: slabs of rows (column 0), states (from 1) and records (kRecords), each `bytes` long.
  static constexpr int kRecords = -1;
  virtual uint8_t* slab(int column, uint64_t number, size_t bytes) = 0;
  virtual uint8_t* sketch(size_t bytes) = 0;
  virtual Standing* standing() = 0;
  virtual Figures* figures() = 0;

  // Of the index: its stripes; where `at` counts from, which has one bucket that is always empty; zeros for buckets.
  virtual Stripe* stripes(size_t count) = 0;
  virtual uint8_t* buckets() = 0;
  virtual uint64_t take_buckets(uint32_t count) = 0;
  virtual void give_buckets(uint64_t at, uint32_t count) = 0;

  // Other state columns come in place of those there are, for so many slabs; once they are filled, they count.
  virtual void attach(const std::vector<int64_t>& widths, const std::vector<float>& fills, uint64_t slabs,
                      uint64_t slab_rows) = 0;
  virtual void attached() = 0;

  // A change is done as a whole or not at all. `rows` that will be kept at least: room for them is made first.
  virtual void begin(uint64_t rows) = 0;
  virtual void commit(const std::optional<Tag>& tag) = 0;
  virtual void abort() = 0;
  // All of it goes, and perhaps is made anew: until `whole`, who opens the table finds it empty.
  virtual void emptying() = 0;
  virtual void whole() = 0;

  // Within a change: these are about to be written to. Several threads may keep rows, with different slots.
  virtual void keep_rows(const uint32_t* slots, int64_t n) = 0;    // with their records
  virtual void keep_values(const uint32_t* slots, int64_t n) = 0;  // of rows that are there; their records stay as they are
  virtual void keep(const void* bytes, size_t n) = 0;
  // Outside of changes, under the shared lock: scores are, if somebody wants them.
  virtual bool wants_scores() const = 0;
  virtual void keep_scores(uint32_t slot, uint8_t* record) = 0;
};

}  // namespace hybridrec
