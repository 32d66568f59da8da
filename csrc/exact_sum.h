// A sum that does not depend on the order of its terms: of the norm of gradients, whose rows lie in one order before a
// run is resumed and in another after, or are dealt to another number of threads.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace hybridrec {

// Of finite doubles that are not negative. Each is added as an integer to the bin of its exponent: terms up to 2^84 in
// 127 bits, so that 2^43 of them fit.
class ExactSum {
 public:
  HYBRIDREC_INLINE void add(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, 8);
    const uint64_t exponent = bits >> 52 & 0x7FF;
    const uint64_t fraction = (bits & 0xFFFFFFFFFFFFFull) | (exponent ? 1ull << 52 : 0);
    const uint64_t shift = exponent ? exponent - 1 : 0;  // x = fraction * 2^(shift - 1074)
    bins_[shift / kStep] += static_cast<unsigned __int128>(fraction) << shift % kStep;
  }

  void add(const ExactSum& other) {
    for (int i = 0; i < kBins; ++i) bins_[i] += other.bins_[i];
  }

  double value() const {
    double sum = 0;
    for (int i = 0; i < kBins; ++i) sum += __builtin_ldexp(static_cast<double>(bins_[i]), i * kStep - 1074);
    return sum;
  }

 private:
  static constexpr int kStep = 32, kBins = 2048 / kStep;
  unsigned __int128 bins_[kBins] = {};
};

}  // namespace hybridrec
