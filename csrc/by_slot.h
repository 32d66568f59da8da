// Grouping occurrences by the row they belong to: a stable radix sort by slot, so that a row's occurrences stay in the
// order they were queued in, whatever the number of threads.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

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

// Occurrences by row: row r has slot slots[r] and occurrences [starts[r], starts[r + 1]), each `what[i] & mask`.
struct BySlot {
  int64_t rows, count;
  const uint32_t *slots, *starts, *what;
  uint32_t mask;
};

// Sorts items slot << low | what, of which `emit(f)` gives slot and what to f one by one. Slots have `bits` bits. Both
// buffers hold all items, `counters` kMostDigits * kMostCounters numbers; the result is in one of the buffers.
template <typename Item, typename Emit>
Item* sort_items(const Emit& emit, int bits, int low, Item* a, Item* b, uint32_t* counters, int64_t& n) {
  const Digits digits(bits);
  const uint32_t mask = (1u << digits.width) - 1;
  std::memset(counters, 0, sizeof(uint32_t) * digits.count * kMostCounters);
  Item* end = a;
  emit([&](uint32_t slot, uint32_t what) {
    *end++ = static_cast<Item>(slot) << low | what;
    ++counters[slot & mask];
  });
  const int64_t count = end - a;
  for (int d = 0; d < digits.count; ++d) {
    uint32_t* counter = counters + d * kMostCounters;
    for (uint32_t i = 0, at = 0; i <= mask; ++i) at += std::exchange(counter[i], at);
    const int shift = low + d * digits.width;
    if (d + 1 < digits.count) {  // the next digit is counted meanwhile
      uint32_t* next = counter + kMostCounters;
      for (int64_t i = 0; i < count; ++i) {
        const Item item = a[i], digit = item >> shift;
        b[counter[digit & mask]++] = item;
        ++next[digit >> digits.width & mask];
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        const Item item = a[i];
        b[counter[item >> shift & mask]++] = item;
      }
    }
    std::swap(a, b);
  }
  n = count;
  return a;
}

// Memory for n occurrences, kept from step to step: fresh memory costs more than the sort.
class SlotSorter {
 public:
  // Emitted slots have `bits` bits, and stand for slot << dealt | part; what occurs there has `low` bits; `most`
  // occurrences.
  template <typename Emit>
  BySlot sort(const Emit& emit, uint32_t part, int dealt, int bits, int low, int64_t most) {
    hold(most);
    int64_t n = 0;
    if (bits + low <= 32) {  // slot and occurrence in one word: half the memory to move
      auto *a = reinterpret_cast<uint32_t*>(a_.data()), *b = reinterpret_cast<uint32_t*>(b_.data());
      const uint32_t* items = sort_items(emit, bits, low, a, b, counters_.data(), n);
      const int64_t rows = find_rows(items, n, low, part, dealt);
      return {rows, n, slots_.data(), starts_.data(), items, static_cast<uint32_t>((uint64_t{1} << low) - 1)};
    }
    const uint64_t* items = sort_items(emit, bits, 32, a_.data(), b_.data(), counters_.data(), n);
    const int64_t rows = find_rows(items, n, 32, part, dealt);
    auto* what = reinterpret_cast<uint32_t*>(items == a_.data() ? b_.data() : a_.data());
    for (int64_t i = 0; i < n; ++i) what[i] = static_cast<uint32_t>(items[i]);
    return {rows, n, slots_.data(), starts_.data(), what, 0xFFFFFFFFu};
  }

 private:
  void hold(int64_t occurrences) {
    if (static_cast<int64_t>(starts_.size()) > occurrences) return;
    a_.resize(occurrences), b_.resize(occurrences), starts_.resize(occurrences + 1), slots_.resize(occurrences + 1);
  }

  template <typename Item>
  int64_t find_rows(const Item* items, int64_t n, int low, uint32_t part, int dealt) {
    int64_t rows = 0;
    uint32_t before = 0;
    uint32_t *starts = starts_.data(), *slots = slots_.data();
    for (int64_t i = 0; i < n; ++i) {
      const auto slot = static_cast<uint32_t>(static_cast<uint64_t>(items[i]) >> low);
      starts[rows] = static_cast<uint32_t>(i);  // overwritten by the next row's, unless this is a new row
      slots[rows] = slot << dealt | part;
      rows += i == 0 || slot != before;
      before = slot;
    }
    starts[rows] = static_cast<uint32_t>(n);
    return rows;
  }

  std::vector<uint64_t> a_, b_;
  std::vector<uint32_t> starts_, slots_;
  std::vector<uint32_t> counters_ = std::vector<uint32_t>(kMostDigits * kMostCounters);
};

}  // namespace hybridrec
