// How often an id was seen, about: a count-min sketch with conservative update (Estan and Varghese, 2002). Four lines
// of counters; an id has one in each, and its count is the least of them. It is never too low, up to the counters'
// limit. It is too high by more than e / width of all occurrences counted with a probability below e^-4, 2 %, and much
// less often where a few ids make up most of them, since only the counters that say the least are raised.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash_index.h"
#include "rows.h"

namespace hybridrec {

class Sketch {
 public:
  // Lines as wide as the table has rows, within [2^12, 2^24]; counters of one byte, or of two to count beyond 255.
  Sketch(uint64_t rows, uint32_t most, Home* home = nullptr) : wide_(most > 0xFF), home_(home) {
    while (width_ < rows && width_ < uint64_t{1} << 24) width_ *= 2;
    cells_ = home ? Pages(home->sketch(bytes()), bytes()) : Pages(bytes());
  }

  uint32_t limit() const { return wide_ ? 0xFFFF : 0xFF; }

  uint32_t count(int64_t id) const {
    uint64_t at[kLines];
    cells(id, at);
    return least(at);
  }

  struct Seen {
    int64_t id;
    uint32_t times;
  };

  // A batch of different ids. All counts are read before one is raised, so that their order changes nothing.
  void add(const std::vector<Seen>& batch) {
    std::vector<uint32_t> sums;
    sums.reserve(batch.size());
    for (const auto& [id, times] : batch)
      sums.push_back(static_cast<uint32_t>(std::min<uint64_t>(limit(), uint64_t{count(id)} + times)));
    for (size_t i = 0; i < batch.size(); ++i) raise(batch[i].id, sums[i]);
  }

  // What a checkpoint keeps: line after line, little-endian.
  const uint8_t* data() const { return cells_.data(); }
  size_t bytes() const { return kLines * width_ * (wide_ ? 2 : 1); }

  void load(const uint8_t* data, size_t bytes) {
    if (bytes != this->bytes())
      throw std::invalid_argument("a sketch of " + std::to_string(bytes) + " bytes does not fit a table whose sketch" +
                                  " has " + std::to_string(this->bytes()) + "; keep its capacity and minimum count");
    std::memcpy(cells_.data(), data, bytes);
  }

  void clear() { std::memset(cells_.data(), 0, bytes()); }

 private:
  static constexpr int kLines = 4;

  // The same for every table and seed, so that a checkpoint may be read by another run.
  void cells(int64_t id, uint64_t* at) const {
    const uint64_t hash = hash_id(id), stride = hash >> 32 | 1;
    for (uint64_t line = 0; line < kLines; ++line) at[line] = line * width_ + ((hash + line * stride) & (width_ - 1));
  }

  void raise(int64_t id, uint32_t to) {
    uint64_t at[kLines];
    cells(id, at);
    for (uint64_t cell : at)
      if (get(cell) < to) set(cell, to);
  }

  uint32_t least(const uint64_t* at) const {
    return std::min(std::min(get(at[0]), get(at[1])), std::min(get(at[2]), get(at[3])));
  }

  uint32_t get(uint64_t cell) const {
    return wide_ ? reinterpret_cast<const uint16_t*>(cells_.data())[cell] : cells_.data()[cell];
  }

  void set(uint64_t cell, uint32_t value) {
    if (home_) home_->keep(cells_.data() + (wide_ ? 2 * cell : cell) / 8 * 8, 8);
    if (wide_) reinterpret_cast<uint16_t*>(cells_.data())[cell] = static_cast<uint16_t>(value);
    else cells_.data()[cell] = static_cast<uint8_t>(value);
  }

  uint64_t width_ = uint64_t{1} << 12;
  bool wide_;
  Home* home_;
  Pages cells_;
};

}  // namespace hybridrec
