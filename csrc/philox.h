// Philox4x32-10 (Salmon et al., SC'11): a random word is a pure function of a counter and a key. Whatever is random
// about a row (its initial value, the rounding of its halves, its admission) is drawn from here, keyed by what it is
// about, so that it depends on neither order nor threads. hybridrec/ops/philox/reference.py is the oracle.
#pragma once

#include <cstdint>

#include "simd.h"

namespace hybridrec {

struct Philox {
  uint32_t word[4];
};

// The fourth counter word says what the draw is for; stochastic rounding uses 2 + step.
constexpr uint32_t kDrawUniform = 0, kDrawNormal = 1, kDrawRounding = 2;
constexpr uint32_t kAdmissionColumn = 0xFFFFFFFFu;

HYBRIDREC_INLINE Philox philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

HYBRIDREC_INLINE Philox philox_of(int64_t id, uint32_t c2, uint32_t c3, uint64_t key) {
  const auto bits = static_cast<uint64_t>(id);
  return philox4x32(static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32), c2, c3, key);
}

}  // namespace hybridrec
