// The permutation of a shuffle window: Fisher-Yates driven by splitmix64. data/shuffle.py holds the reference.
#pragma once

#include <cstdint>
#include <utility>

namespace hybridrec {

struct SplitMix64 {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
};

// A window holds fewer than 2^32 rows, so 32 random bits bound by a multiply are enough (bias below n / 2^32).
inline void permutation(int64_t n, uint64_t key, int64_t* out) {
  SplitMix64 random{key};
  for (int64_t i = 0; i < n; ++i) out[i] = i;
  for (int64_t i = n - 1; i > 0; --i) {
    const uint64_t j = ((random.next() >> 32) * static_cast<uint64_t>(i + 1)) >> 32;
    std::swap(out[i], out[j]);
  }
}

}  // namespace hybridrec
