#include "marked_rows.h"

#include <algorithm>

#include "simd.h"

namespace hybridrec {

namespace {

// Where the bits of a table are, and what has been counted of them.
struct Bits {
  uint64_t rows;
  const uint64_t* words;
  const uint32_t* before;

  HYBRIDREC_INLINE uint32_t rank(int64_t id) const {
    const uint64_t row = std::min(static_cast<uint64_t>(id), rows), lower = (uint64_t{1} << row % 64) - 1;
    return before[row / 64] + static_cast<uint32_t>(__builtin_popcountll(words[row / 64] & lower));
  }
};

// Every id is written, and the next one over it unless it is new.
HYBRIDREC_SIMD int64_t mark_run(const int64_t* ids, int64_t n, uint64_t rows, uint64_t* words, int64_t* fresh) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t row = std::min(static_cast<uint64_t>(ids[i]), rows), word = words[row / 64];
    words[row / 64] = word | uint64_t{1} << row % 64;
    fresh[found] = ids[i];
    found += ~(word >> row % 64) & 1;
  }
  return found;
}

HYBRIDREC_SIMD void count_run(const uint64_t* words, size_t n, uint32_t* before) {
  uint32_t count = 0;
  for (size_t w = 0; w < n; ++w) {
    before[w] = count;
    count += static_cast<uint32_t>(__builtin_popcountll(words[w]));
  }
}

HYBRIDREC_SIMD void rank_run(const Bits& bits, const int64_t* ids, int64_t n, uint32_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = bits.rank(ids[i]);
}

HYBRIDREC_SIMD void find_run(const Bits& bits, const int64_t* ids, int64_t n, const int64_t* by_rank, int64_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = by_rank[bits.rank(ids[i])];
}

}  // namespace

MarkedRows::MarkedRows(int64_t rows) : rows_(rows), bits_(rows_ / 64 + 1), before_(bits_.size()) {
  bits_.back() = uint64_t{1} << rows_ % 64;
}

int64_t MarkedRows::mark(const int64_t* ids, int64_t n, int64_t* fresh) {
  return mark_run(ids, n, rows_, bits_.data(), fresh);
}

void MarkedRows::count() { count_run(bits_.data(), bits_.size(), before_.data()); }

void MarkedRows::rank(const int64_t* ids, int64_t n, uint32_t* out) const {
  rank_run({rows_, bits_.data(), before_.data()}, ids, n, out);
}

void MarkedRows::find(const int64_t* ids, int64_t n, const int64_t* by_rank, int64_t* out) const {
  find_run({rows_, bits_.data(), before_.data()}, ids, n, by_rank, out);
}

}  // namespace hybridrec
