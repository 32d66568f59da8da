#include "hash_index.h"

#include <cmath>
#include <limits>
#include <random>
#include <unordered_map>
#include <vector>

#include "check.h"

namespace hybridrec {
namespace {

struct Keys {
  const std::vector<int64_t>& keys;
  int64_t operator()(uint32_t slot) const { return keys[slot]; }
  void prefetch(uint32_t slot) const { __builtin_prefetch(&keys[slot]); }
};

// An index with the keys it points to.
struct Indexed {
  std::vector<int64_t> keys;
  HashIndex index;

  explicit Indexed(uint64_t most) : index(most) {}

  void add(int64_t id) {
    keys.push_back(id);
    index.insert(id, static_cast<uint32_t>(keys.size() - 1), Keys{keys});
  }
  uint32_t find(int64_t id) const { return index.find(id, Keys{keys}); }
};

TEST("matching by words finds the same tags as matching by vectors") {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    Bucket bucket{};
    const uint32_t kinds = 1 + random() % 256;  // few kinds: many equal tags, and neighbours that differ by a borrow
    for (uint8_t& tag : bucket.tags) tag = static_cast<uint8_t>(random() % kinds);
    bucket.passed = random();
    const auto tag = static_cast<uint8_t>(random() % kinds);
    uint32_t expected = 0;
    for (uint32_t i = 0; i < Bucket::kEntries; ++i) expected |= uint32_t{bucket.tags[i] == tag} << i;
    CHECK(match(bucket, tag) == expected);
    CHECK(match_words(bucket, tag) == expected);
  }
}

TEST("any int64 is a key, the extremes, 0 and -1 among them") {
  Indexed indexed(100);
  const int64_t lowest = std::numeric_limits<int64_t>::min(), highest = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> ids = {0, -1, 1, lowest, highest, lowest + 1, highest - 1, 0xFFFFFFFF, -0xFFFFFFFFll};
  for (int64_t id : ids) CHECK(indexed.find(id) == kMissing);
  for (int64_t id : ids) indexed.add(id);
  for (size_t i = 0; i < ids.size(); ++i) CHECK(indexed.find(ids[i]) == i);
  CHECK(indexed.find(2) == kMissing);
}

TEST("an index agrees with a map over random insertions, removals and searches") {
  for (uint64_t most : {10ull, 3000ull, 100000ull, 1000000000000ull}) {
    std::mt19937_64 random(most);
    Indexed indexed(most);
    std::unordered_map<int64_t, uint32_t> map;
    const int64_t range = static_cast<int64_t>(std::min<uint64_t>(most, 6000)) * 2;
    for (int round = 0; round < 60000; ++round) {
      const auto id = static_cast<int64_t>(random() % range) - range / 2;
      const auto known = map.find(id);
      CHECK(indexed.find(id) == (known == map.end() ? kMissing : known->second));
      const bool shrinking = round / 10000 % 2 != 0;  // waves: buckets fill, overflow and empty again
      if (known == map.end() && random() % 10 >= (shrinking ? 8 : 1) && map.size() < most) {
        map[id] = static_cast<uint32_t>(indexed.keys.size());
        indexed.add(id);
      } else if (known != map.end() && random() % 10 < (shrinking ? 8 : 1)) {
        indexed.index.erase(id, known->second);
        map.erase(known);
      }
    }
    std::vector<int64_t> ids(static_cast<size_t>(range));
    for (int64_t i = 0; i < range; ++i) ids[i] = i - range / 2;
    int64_t next = 0;
    indexed.index.find(ids.data(), range, Keys{indexed.keys}, [&](int64_t i, uint32_t slot) {
      CHECK(i == next++);
      CHECK(slot == (map.count(ids[i]) ? map[ids[i]] : kMissing));
    });
    CHECK(next == range);
  }
}

TEST("a search of many ids treats every count of them alike") {
  Indexed indexed(1000);
  for (int64_t id = 0; id < 500; ++id) indexed.add(id * 7);
  std::vector<int64_t> ids(200);
  for (int64_t i = 0; i < 200; ++i) ids[i] = i * 35 / 2;
  for (int64_t n = 0; n <= 200; ++n) {
    int64_t calls = 0;
    indexed.index.find(ids.data(), n, Keys{indexed.keys}, [&](int64_t i, uint32_t slot) {
      CHECK(i == calls++);
      CHECK(slot == indexed.find(ids[i]));
    });
    CHECK(calls == n);
  }
}

TEST("stripes grow one after another: no insertion rebuilds more than a small part of the index") {
  Indexed indexed(1 << 20);
  size_t bytes = indexed.index.bytes();
  int growths = 0;
  for (int64_t id = 0; id < 400000; ++id) {
    indexed.add(id);
    const size_t now = indexed.index.bytes();
    if (now != bytes && id > 20000) {
      CHECK((now - bytes) * 5 < now / 40);  // a stripe grows by a quarter of itself; there are 128 of them
      ++growths;
    }
    bytes = now;
  }
  CHECK(growths > 1000);
}

TEST("while an index grows, its stripes take turns") {
  Indexed indexed(1 << 20);
  for (int64_t id = 0; id < 200000; ++id) indexed.add(id);
  for (int64_t id = 200000; id < 400000;) {
    const size_t before = indexed.index.bytes();
    for (const int64_t stop = id + id / 100; id < stop; ++id) indexed.add(id);
    CHECK(indexed.index.bytes() < before + before / 40);  // for 1 % more entries; all at once would be 25 %
  }
}

TEST("an entry of the index takes at most 8 bytes, and takes none before it comes") {
  Indexed indexed(uint64_t{1} << 40);
  CHECK(indexed.index.bytes() <= 4096 * 16);
  for (int64_t id = 0; id < 1000000; ++id) {
    indexed.add(id);
    if (id > 500000 && id % 1000 == 0) CHECK(indexed.index.bytes() < 8 * static_cast<size_t>(id));
  }
}

TEST("a search for what is not there ends even where entries have gone past every bucket") {
  Indexed indexed(20);
  std::vector<int64_t> low, high, absent;  // ids of the first stripe, by the half of it that is their home
  for (int64_t id = 0; absent.size() < 50; ++id) {
    const uint64_t hash = hash_id(id);
    if (hash >> 63 != 0) continue;
    auto& kind = (hash & 0x80000000u) != 0 ? high : low;
    (kind.size() < 20 ? kind : absent).push_back(id);
  }
  for (int i = 0; i < 14; ++i) indexed.add(low[i]);  // two buckets by now: the first is full, and two are in the second
  for (uint32_t slot = 0; slot < 8; ++slot) indexed.index.erase(low[slot], slot);
  for (int i = 0; i < 12; ++i) indexed.add(high[i]);  // the second is full, and two are in the first
  for (int64_t id : absent) CHECK(indexed.find(id) == kMissing);
  for (int i = 0; i < 14; ++i) CHECK(indexed.find(low[i]) == (i < 8 ? kMissing : static_cast<uint32_t>(i)));
  for (uint32_t i = 0; i < 12; ++i) CHECK(indexed.find(high[i]) == 14 + i);
}

}  // namespace
}  // namespace hybridrec
