// Grouping occurrences by the row they belong to: a stable radix sort by slot, so that a row's occurrences stay in the
// order they were queued in, whatever the number of threads.
#pragma once

#include <cstdint>
#include <cstring>

namespace hybridrec {

inline int bit_width(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

// Digits of `bits` bits, low ones first: enough passes that a digit's counters stay in the first-level cache.
struct Digits {
  int count, width;
  explicit Digits(int bits) : count(bits <= 11 ? 1 : (bits + 9) / 10), width((bits + count - 1) / count) {
    if (width == 0) width = 1;
  }
};

constexpr int kMostDigits = 4, kMostCounters = 1 << 11;

// Sorts the items (slot << 32 | what) of `n` occurrences that `emit(f)` gives to f one by one, twice the same. Slots
// have `bits` bits that differ. Both buffers hold n items; the result is in one of them.
template <typename Emit>
uint64_t* sort_by_slot(const Emit& emit, int bits, uint64_t* a, uint64_t* b, int64_t& n) {
  static thread_local uint32_t counters[kMostDigits][kMostCounters];
  const Digits digits(bits);
  const uint32_t mask = (1u << digits.width) - 1;
  for (int d = 0; d < digits.count; ++d) std::memset(counters[d], 0, sizeof(uint32_t) << digits.width);
  n = 0;
  emit([&](uint32_t slot, uint32_t) {
    for (int d = 0; d < digits.count; ++d) ++counters[d][slot >> d * digits.width & mask];
    ++n;
  });
  for (int d = 0; d < digits.count; ++d)
    for (uint32_t i = 0, at = 0; i <= mask; ++i) {
      const uint32_t here = counters[d][i];
      counters[d][i] = at;
      at += here;
    }
  uint32_t* counter = counters[0];
  emit([&](uint32_t slot, uint32_t what) {
    a[counter[slot & mask]++] = static_cast<uint64_t>(slot) << 32 | what;
  });
  for (int d = 1; d < digits.count; ++d) {
    counter = counters[d];
    const int shift = 32 + d * digits.width;
    for (int64_t i = 0; i < n; ++i) b[counter[a[i] >> shift & mask]++] = a[i];
    uint64_t* next = b;
    b = a;
    a = next;
  }
  return a;
}

}  // namespace hybridrec
