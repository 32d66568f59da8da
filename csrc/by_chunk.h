// The rows of a gathered batch in the order in which they lie in their chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "by_slot.h"
#include "pack.h"

namespace hybridrec {

// A shuffled window is larger than the cache. In the order of the batch, each number of each column would wait for a
// line of memory; in this one lines follow each other, so that the processor fetches them ahead, and a line is fetched
// once for all its numbers. What is written at random instead is one feature of one batch, which the cache holds.
class ByChunk {
 public:
  ByChunk(const RowChoice& choice, const Chunks& chunks) : rows_(choice.count), places_(choice.count) {
    std::vector<int64_t> first(1, 0);  // where the rows of each chunk would begin, were all chunks laid end to end
    for (const Chunk* chunk : chunks) first.push_back(first.back() + chunk->rows());
    const int bits = bit_width(static_cast<uint64_t>(first.back()));
    if (bits > 32) throw std::length_error("a shuffled batch needs chunks of fewer than 2**32 rows together");
    std::vector<uint64_t> a(choice.count), b(choice.count);
    std::vector<uint32_t> counters(kMostDigits * kMostCounters);
    const auto emit = [&](const auto& item) {
      for (int64_t j = 0; j < choice.count; ++j)
        item(static_cast<uint32_t>(first[choice.chunk_of[j]] + choice.row_of[j]), static_cast<uint32_t>(j));
    };
    int64_t n = 0, at = 0;
    const uint64_t* items = sort_items(emit, bits, 32, a.data(), b.data(), counters.data(), n);
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      for (; at < n && static_cast<int64_t>(items[at] >> 32) < first[chunk + 1]; ++at) {
        rows_[at] = static_cast<uint32_t>((items[at] >> 32) - first[chunk]);
        places_[at] = static_cast<uint32_t>(items[at]);
      }
      ends_.push_back(at);
    }
  }

  // body(chunk, rows in it, places in the batch, how many), for parts of at most `most` rows.
  template <typename Body>
  void each(Body&& body, int64_t most = INT64_MAX) const {
    int64_t at = 0;
    for (size_t chunk = 0; chunk < ends_.size(); ++chunk)
      while (at < ends_[chunk]) {
        const int64_t n = std::min(most, ends_[chunk] - at);
        body(chunk, rows_.data() + at, places_.data() + at, n);
        at += n;
      }
  }

 private:
  std::vector<uint32_t> rows_, places_;
  std::vector<int64_t> ends_;
};

}  // namespace hybridrec
