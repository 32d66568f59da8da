// The way from an id to its slot: an open-addressing index over keys that somebody else holds. An entry is a slot and
// one byte of the id's hash, 5.3 bytes; twelve entries share a cache line, so that most searches read one line of the
// index and one key. The index is many stripes, each growing by a quarter on its own and at sizes of its own: a step
// that adds rows rebuilds a few small stripes, never the whole.
//
// Readers may share it; a change needs it alone. `keys` gives the key of a slot, keys(slot), and fetches its line ahead
// of time, keys.prefetch(slot).
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "home.h"
#include "rows.h"
#include "thread_pool.h"

namespace hybridrec {

// The finalizer of MurmurHash3: a bijection in which every bit of the id reaches every bit of the hash.
inline uint64_t hash_id(int64_t id) {
  auto h = static_cast<uint64_t>(id);
  h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCDull;
  h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return h ^ (h >> 33);
}

// Entries go to the bucket their hash names, their home, or to the next one with room.
struct alignas(64) Bucket {
  static constexpr uint32_t kEntries = 12;

  uint8_t tags[kEntries];  // 0: no entry
  uint32_t passed;         // entries that went past this bucket when it was full; where none did, a search ends
  uint32_t slots[kEntries];
};
static_assert(sizeof(Bucket) == 64, "a bucket is a cache line");

// Bit i is set where tags[i] == tag. Arithmetic on words, after Lamport: exact, unlike the shorter test that borrows.
inline uint32_t match_words(const Bucket& bucket, uint8_t tag) {
  constexpr uint64_t kLow7 = 0x7F7F7F7F7F7F7F7Full;
  uint32_t found = 0;
  for (int half = 0; half < 2; ++half) {
    uint64_t x;
    std::memcpy(&x, reinterpret_cast<const uint8_t*>(&bucket) + 8 * half, 8);
    x ^= 0x0101010101010101ull * tag;
    const uint64_t equal = ~(((x & kLow7) + kLow7) | x | kLow7) >> 7;  // 1 in each equal byte
    found |= static_cast<uint32_t>((equal * 0x0102040810204080ull) >> 56) << (8 * half);
  }
  return found & 0xFFF;  // beyond the tags are bytes of `passed`
}

inline uint32_t match(const Bucket& bucket, uint8_t tag) {
#if defined(__SSE2__)
  const __m128i tags = _mm_load_si128(reinterpret_cast<const __m128i*>(&bucket));
  return _mm_movemask_epi8(_mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)))) & 0xFFF;
#else
  return match_words(bucket, tag);
#endif
}

class HashIndex {
 public:
  // For at most `most` entries; takes memory as they come. Stripes have thousands of entries, and are at most 4096.
  explicit HashIndex(uint64_t most, Home* home = nullptr) : home_(home) {
    int bits = 1;
    while (bits < 12 && (most >> 13) >> bits != 0) ++bits;
    shift_ = 64 - bits;
    count_ = size_t{1} << bits;
    if (!home) own_.resize(count_, Stripe{nothing(), 1, 0});
    stripes_ = home ? home->stripes(count_) : own_.data();
    base_ = home ? home->buckets() : nullptr;
  }
  ~HashIndex() {
    if (!home_) clear();
  }
  HashIndex(const HashIndex&) = delete;
  HashIndex& operator=(HashIndex&& other) noexcept {  // of one in plain memory, made for as many entries
    own_.swap(other.own_);
    stripes_ = own_.data(), other.stripes_ = other.own_.data();
    return *this;
  }

  size_t bytes() const {
    size_t buckets = 0;
    for (size_t s = 0; s < count_; ++s) buckets += empty(stripes_[s]) ? 0 : stripes_[s].count;
    return buckets * sizeof(Bucket) + count_ * sizeof(Stripe);
  }

  template <typename Keys>
  uint32_t find(int64_t id, const Keys& keys) const {
    const uint64_t hash = hash_id(id);
    const Stripe& stripe = stripes_[hash >> shift_];
    uint32_t at = first(stripe, hash);
    for (uint32_t step = 0; step < stripe.count; ++step, at = after(stripe, at)) {
      const Bucket& bucket = buckets(stripe)[at];
      for (uint32_t found = match(bucket, tag_of(hash)); found != 0; found &= found - 1) {
        const uint32_t slot = bucket.slots[__builtin_ctz(found)];
        if (keys(slot) == id) return slot;
      }
      if (bucket.passed == 0) break;
    }
    return kMissing;
  }

  // Calls found(i, slot or kMissing) for every i < n in order. An id passes three stations some ids apart, so that the
  // cache misses of many ids run side by side: fetch its home; take the likely slot and fetch its key; compare.
  template <typename Keys, typename Found>
  void find(const int64_t* ids, int64_t n, const Keys& keys, Found found) const {
    constexpr int64_t kApart = 24, kRing = 64;  // 24 misses fill the buffers of a core
    constexpr uint32_t kElsewhere = kMissing - 1;  // no slot: a table has at most 2^32 - 2 rows
    const Bucket* homes[kRing];
    uint8_t tags[kRing];
    uint32_t slots[kRing];
    for (int64_t i = 0; i < n + 2 * kApart; ++i) {
      if (const int64_t third = i - 2 * kApart; third >= 0) {
        uint32_t slot = slots[third % kRing];
        if (slot != kMissing && (slot == kElsewhere || keys(slot) != ids[third])) slot = find(ids[third], keys);
        found(third, slot);
      }
      if (const int64_t second = i - kApart; second >= 0 && second < n) {
        const Bucket& home = *homes[second % kRing];
        const uint32_t matches = match(home, tags[second % kRing]);
        uint32_t& slot = slots[second % kRing];
        slot = home.passed == 0 ? kMissing : kElsewhere;
        if (matches != 0) keys.prefetch(slot = home.slots[__builtin_ctz(matches)]);
      }
      if (i < n) {
        const uint64_t hash = hash_id(ids[i]);
        const Stripe& stripe = stripes_[hash >> shift_];
        homes[i % kRing] = &buckets(stripe)[first(stripe, hash)];
        tags[i % kRing] = tag_of(hash);
        __builtin_prefetch(homes[i % kRing]);
      }
    }
  }

  // Of an id that is not there.
  template <typename Keys>
  void insert(int64_t id, uint32_t slot, const Keys& keys) {
    const uint64_t hash = hash_id(id);
    Stripe& stripe = stripes_[hash >> shift_];
    if (stripe.used >= limit(stripe)) grow(stripe, keys);
    keep(&stripe, sizeof stripe);
    put(stripe, hash, slot, home_);
  }

  // Room for so many entries in an index without any, spread over the stripes by chance.
  void reserve(uint64_t entries) {
    const double mean = static_cast<double>(entries) / static_cast<double>(count_);
    const auto likely = static_cast<uint32_t>(mean + 4 * std::sqrt(mean));
    ThreadPool::instance().run(static_cast<int64_t>(count_), [&](int64_t s, int) {
      if (limit(stripes_[s]) >= likely) return;
      drop(stripes_[s]);
      stripes_[s] = sized(s, (likely + kFull - 1) / kFull);
    });
  }

  // Inserts ids[i] for slot first + i, all n, into an index from which nothing was erased; each thread has some of the
  // stripes. The position of an id that was there before, or -1.
  template <typename Keys>
  int64_t append(const int64_t* ids, int64_t n, uint32_t first, const Keys& keys) {
    const uint64_t stripes = count_, threads = static_cast<uint64_t>(ThreadPool::instance().threads());
    std::atomic<int64_t> twice{-1};
    ThreadPool::instance().run(static_cast<int64_t>(threads), [&](int64_t task, int) {
      const uint64_t low = task * stripes / threads, high = (task + 1) * stripes / threads;
      for (int64_t start = 0; start < n; start += kBatch) {
        const auto slot = first + static_cast<uint32_t>(start);
        const int64_t at = append(ids + start, std::min(kBatch, n - start), slot, keys, low, high);
        if (at >= 0) twice = start + at;
      }
    });
    return twice;
  }

  // Of an id that is there, in this slot.
  void erase(int64_t id, uint32_t slot) {
    const uint64_t hash = hash_id(id);
    Stripe& stripe = stripes_[hash >> shift_];
    keep(&stripe, sizeof stripe);
    for (uint32_t at = first(stripe, hash);; at = after(stripe, at)) {
      Bucket& bucket = buckets(stripe)[at];
      keep(&bucket, sizeof bucket);
      for (uint32_t found = match(bucket, tag_of(hash)); found != 0; found &= found - 1)
        if (bucket.slots[__builtin_ctz(found)] == slot) {
          bucket.tags[__builtin_ctz(found)] = 0;
          --stripe.used;
          return;
        }
      --bucket.passed;
    }
  }

  // Fetches the line that insert or erase of this id will want.
  HYBRIDREC_INLINE void prefetch(int64_t id) const {
    const uint64_t hash = hash_id(id);
    const Stripe& stripe = stripes_[hash >> shift_];
    __builtin_prefetch(&buckets(stripe)[first(stripe, hash)]);
  }

  void clear() {
    for (size_t s = 0; s < count_; ++s) {
      drop(stripes_[s]);
      stripes_[s] = {nothing(), 1, 0};
    }
  }

 private:
  static inline Bucket nothing_ = {};  // of a stripe that has no memory yet; never written to

  // Where a stripe without memory points to.
  uint64_t nothing() const { return home_ ? 0 : reinterpret_cast<uint64_t>(&nothing_); }
  Bucket* buckets(const Stripe& stripe) const { return reinterpret_cast<Bucket*>(base_ + stripe.at); }
  bool empty(const Stripe& stripe) const { return stripe.at == nothing(); }
  void drop(const Stripe& stripe) {
    if (empty(stripe)) return;
    if (home_) home_->give_buckets(stripe.at, stripe.count);
    else delete[] buckets(stripe);
  }
  void keep(const void* bytes, size_t n) const {
    if (home_) home_->keep(bytes, n);
  }

  static uint32_t first(const Stripe& stripe, uint64_t hash) {
    return static_cast<uint32_t>((hash & 0xFFFFFFFFull) * stripe.count >> 32);
  }
  static uint32_t after(const Stripe& stripe, uint32_t at) { return at + 1 == stripe.count ? 0 : at + 1; }
  static constexpr uint32_t kFull = 10;  // entries of a bucket, of 12: a load of 0.83
  uint32_t limit(const Stripe& stripe) const { return empty(stripe) ? 0 : stripe.count * kFull; }

  // Bits that neither the stripe (the top twelve) nor the home (the low half) depends on.
  static uint8_t tag_of(uint64_t hash) { return static_cast<uint8_t>(1 + ((hash >> 32 & 0xFFFF) * 255 >> 16)); }

  // Of a stripe that `kept` keeps, unless nobody needs it as it was.
  void put(Stripe& stripe, uint64_t hash, uint32_t slot, Home* kept) const {
    for (uint32_t at = first(stripe, hash);; at = after(stripe, at)) {
      Bucket& bucket = buckets(stripe)[at];
      if (kept) kept->keep(&bucket, sizeof bucket);
      if (const uint32_t free = match(bucket, 0)) {
        bucket.tags[__builtin_ctz(free)] = tag_of(hash);
        bucket.slots[__builtin_ctz(free)] = slot;
        ++stripe.used;
        return;
      }
      ++bucket.passed;
    }
  }

  static constexpr int64_t kBatch = 4096;  // ids

  // The same of a batch, of those ids that are in stripes [low, high).
  template <typename Keys>
  int64_t append(const int64_t* ids, int64_t n, uint32_t first, const Keys& keys, uint64_t low, uint64_t high) {
    constexpr int64_t kApart = 24;
    uint64_t hashes[kBatch];
    uint32_t mine[kBatch];
    int64_t count = 0, twice = -1;
    for (int64_t i = 0; i < n; ++i) {
      hashes[count] = hash_id(ids[i]);
      mine[count] = static_cast<uint32_t>(i);
      count += (hashes[count] >> shift_) - low < high - low;
    }
    for (int64_t at = 0; at < count; ++at) {
      if (at + kApart < count) {
        const Stripe& next = stripes_[hashes[at + kApart] >> shift_];
        __builtin_prefetch(&buckets(next)[this->first(next, hashes[at + kApart])], 1);
      }
      Stripe& stripe = stripes_[hashes[at] >> shift_];
      if (stripe.used >= limit(stripe)) grow(stripe, keys);
      if (!add(stripe, hashes[at], ids[mine[at]], first + mine[at], keys)) twice = mine[at];
    }
    return twice;
  }

  // A search that ends in an insert, unless it finds the id: where nothing was erased, a bucket with room has not been
  // passed.
  template <typename Keys>
  bool add(Stripe& stripe, uint64_t hash, int64_t id, uint32_t slot, const Keys& keys) const {
    const uint8_t tag = tag_of(hash);
    for (uint32_t at = first(stripe, hash);; at = after(stripe, at)) {
      Bucket& bucket = buckets(stripe)[at];
      for (uint32_t found = match(bucket, tag); found != 0; found &= found - 1)
        if (keys(bucket.slots[__builtin_ctz(found)]) == id) return false;
      if (const uint32_t free = match(bucket, 0)) {
        bucket.tags[__builtin_ctz(free)] = tag;
        bucket.slots[__builtin_ctz(free)] = slot;
        ++stripe.used;
        return true;
      }
      ++bucket.passed;
    }
  }

  // The sizes of stripe s are 1.25^(k + f(s)), with f spread evenly over [0, 1) (by the golden ratio): while the
  // index grows by a quarter, each stripe grows once, one after another.
  Stripe sized(int64_t s, uint32_t least) const {
    const double turn = 0.6180339887498949 * static_cast<double>(s);
    double size = std::pow(1.25, turn - std::floor(turn));
    while (std::floor(size) < least) size *= 1.25;
    const auto count = static_cast<uint32_t>(size);
    return {home_ ? home_->take_buckets(count) : reinterpret_cast<uint64_t>(new Bucket[count]()), count, 0};
  }

  template <typename Keys>
  void grow(Stripe& stripe, const Keys& keys) {
    Stripe grown = sized(&stripe - stripes_, empty(stripe) ? 1 : stripe.count + 1);
    const auto each = [](const Bucket& bucket, const auto& visit) __attribute__((always_inline)) {
      for (uint32_t i = 0; i < Bucket::kEntries; ++i)
        if (bucket.tags[i] != 0) visit(bucket.slots[i]);
    };
    constexpr uint32_t kAhead = 2;
    for (uint32_t at = 0; at < stripe.count; ++at) {
      if (at + kAhead < stripe.count) each(buckets(stripe)[at + kAhead], [&](uint32_t slot) __attribute__((always_inline)) { keys.prefetch(slot); });
      each(buckets(stripe)[at], [&](uint32_t slot) { put(grown, hash_id(keys(slot)), slot, nullptr); });
    }
    keep(&stripe, sizeof stripe);
    drop(stripe);
    stripe = grown;
  }

  Home* home_;
  int shift_;
  size_t count_;
  Stripe* stripes_;
  uint8_t* base_;  // what `at` of a stripe counts from
  std::vector<Stripe> own_;
};

}  // namespace hybridrec
