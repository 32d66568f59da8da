// Rows of a table as they are kept in a file: what a change or a cut goes back to.
#pragma once

#include <cstdint>
#include <cstring>

#include "hash_table.h"
#include "records.h"
#include "simd.h"

namespace hybridrec {

// An image is a row and its state; a whole one has its slot and its record before that. The columns of the table are found
// once for many rows, under a lock on the table.
class RowImages {
 public:
  explicit RowImages(const HashTable& table)
      : records_(table.records()), rows_(table.rows.column()), count_(table.rows.states()), bytes_(rows_.stride) {
    for (int k = 0; k < count_; ++k) bytes_ += (states_[k] = table.rows.state(k)).stride;
  }

  const Column& records() const { return records_; }
  int64_t bytes() const { return bytes_; }
  int64_t whole_bytes() const { return kBefore + bytes_; }

  uint8_t* write(uint8_t* to, uint32_t slot) const {
    to = copied(to, rows_, slot);
    for (int k = 0; k < count_; ++k) to = copied(to, states_[k], slot);
    return to;
  }
  uint8_t* write_whole(uint8_t* to, uint32_t slot) const {
    const uint64_t number = slot;
    std::memcpy(to, &number, 8);
    std::memcpy(to + 8, records_.at(slot), record::kStamped);
    return write(to + kBefore, slot);
  }

  // Back into the table; where the next image is.
  const uint8_t* read(const uint8_t* from, uint32_t slot) const {
    std::memcpy(rows_.at(slot), from, rows_.stride);
    from += rows_.stride;
    for (int k = 0; k < count_; from += states_[k++].stride) std::memcpy(states_[k].at(slot), from, states_[k].stride);
    return from;
  }
  const uint8_t* read_whole(const uint8_t* from) const {
    const uint32_t slot = slot_of(from);
    std::memcpy(records_.at(slot), from + 8, record::kStamped);
    return read(from + kBefore, slot);
  }
  static uint32_t slot_of(const uint8_t* whole) {
    uint64_t slot;
    std::memcpy(&slot, whole, 8);
    return static_cast<uint32_t>(slot);
  }

  // Has what is about to be read come to the caches.
  HYBRIDREC_INLINE void fetch(uint32_t slot) const {
    fetch(rows_, slot);
    for (int k = 0; k < count_; ++k) fetch(states_[k], slot);
  }

 private:
  static constexpr int64_t kBefore = 8 + record::kStamped;

  // Rows are short: a call for each would cost more than the copy.
  static uint8_t* copied(uint8_t* to, const Column& column, uint32_t slot) {
    const uint8_t* from = column.at(slot);
    int64_t left = column.stride;
    for (; left >= 64; left -= 64, to += 64, from += 64) std::memcpy(to, from, 64);
    for (; left >= 16; left -= 16, to += 16, from += 16) std::memcpy(to, from, 16);
    if (left > 0) std::memcpy(to, from, left);
    return to + left;
  }
  static HYBRIDREC_INLINE void fetch(const Column& column, uint32_t slot) {
    for (int64_t byte = 0; byte < column.stride; byte += 64) __builtin_prefetch(column.at(slot) + byte, 1);
  }

  Column records_, rows_, states_[2];
  int count_;
  int64_t bytes_;
};

}  // namespace hybridrec
