// The hash table against a plain model of its rules, over random batches.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "hash_table.h"
#include "hash_table_use.h"
#include "philox.h"

namespace hybridrec {
namespace {

using Batch = std::vector<std::vector<int64_t>>;

// The rules as they are written down, with a sort where the table selects and a map where it hashes.
class Model {
 public:
  struct Row {
    uint32_t touched, count;
  };

  explicit Model(const Policy& policy) : policy_(policy), sketch_(policy.capacity, policy.min_count) {}

  // The ids whose rows come into being, in order; none if the batch cannot be held.
  std::optional<std::vector<int64_t>> train(const Batch& batch) {
    std::vector<int64_t> wanted;
    std::unordered_map<int64_t, uint32_t> times;
    for (const auto& ids : batch)
      for (int64_t id : ids)
        if (alive(id)) {
          rows_.at(id).touched = clock;
          ++rows_.at(id).count;
          ++counted.hits;
        } else {
          if (times[id]++ == 0) wanted.push_back(id);
          ++counted.misses;
        }
    std::vector<int64_t> born;
    std::set<int64_t> reborn;
    const uint64_t room = policy_.capacity - rows_.size();
    uint64_t fresh = 0;
    for (int64_t id : wanted) {
      if (!admitted(id, times[id])) continue;
      const bool back = rows_.count(id) != 0;
      if (!back && policy_.eviction == Eviction::None && fresh == room) continue;
      if (back) reborn.insert(id);
      else ++fresh;
      born.push_back(id);
    }
    if (fresh > room && !evict(fresh - room, reborn)) return std::nullopt;
    counted.expired += static_cast<int64_t>(reborn.size());
    for (int64_t id : born) rows_[id] = {clock, times[id]};
    std::vector<Sketch::Seen> seen;
    for (int64_t id : wanted) {
      if (drawn(id)) seen.push_back({id, times[id]});
      if (std::find(born.begin(), born.end(), id) == born.end()) counted.refused += times[id];
    }
    sketch_.add(seen);
    counted.inserted += static_cast<int64_t>(born.size());
    return born;
  }

  bool alive(int64_t id) const { return rows_.count(id) != 0 && !expired(rows_.at(id)); }
  void erase(int64_t id) { rows_.erase(id); }
  size_t size() const { return rows_.size(); }

  std::map<int64_t, std::pair<uint32_t, uint32_t>> scores() const {
    std::map<int64_t, std::pair<uint32_t, uint32_t>> all;
    for (const auto& [id, row] : rows_)
      if (!expired(row)) all[id] = {row.touched, policy_.eviction == Eviction::Lfu ? row.count : 0};
    return all;
  }

  uint32_t clock = 0;
  Counters counted{};

 private:
  bool expired(const Row& row) const {
    return policy_.eviction == Eviction::Ttl && clock - row.touched > policy_.ttl_steps;
  }
  bool drawn(int64_t id) const {
    return philox_of(id, 0xFFFFFFFFu, 0, spec().key).word[0] < policy_.probability * 4294967296.0;
  }
  bool admitted(int64_t id, uint32_t times) const {
    return drawn(id) && (policy_.min_count <= 1 || sketch_.count(id) + times >= policy_.min_count);
  }

  bool evict(uint64_t needed, const std::set<int64_t>& kept) {
    std::vector<std::pair<uint32_t, int64_t>> order;
    for (const auto& [id, row] : rows_)
      if (row.touched != clock && kept.count(id) == 0)
        order.emplace_back(policy_.eviction == Eviction::Lfu ? row.count : row.touched, id);
    if (order.size() < needed) return false;
    std::sort(order.begin(), order.end());
    order.resize(std::min<size_t>(order.size(), std::max(needed, policy_.capacity / 64)));
    for (const auto& [score, id] : order) {
      ++(expired(rows_.at(id)) ? counted.expired : counted.evicted);
      rows_.erase(id);
    }
    return true;
  }

  Policy policy_;
  Sketch sketch_;
  std::map<int64_t, Row> rows_;
};

Batch random_batch(std::mt19937_64& random, uint64_t capacity) {
  Batch batch(1 + random() % 3);
  const uint64_t range = 3 * capacity + 2, most = random() % 8 == 0 ? 2 * capacity + 2 : capacity / 4 + 2;
  for (auto& ids : batch) {
    ids.resize(random() % most);
    for (int64_t& id : ids) {
      const uint64_t a = random() % range, b = random() % range;
      id = (static_cast<int64_t>(std::min(a, b)) - 3) * 0x1234567;  // low ones more often
    }
  }
  return batch;
}

void agree(HashTable& table, const Model& model, uint64_t capacity) {
  CHECK(table.size() == static_cast<int64_t>(model.size()));
  CHECK(table.size() <= static_cast<int64_t>(capacity) && table.rows.size() <= capacity);
  CHECK(scores(table) == model.scores());
  const Counters a = table.counters(), &b = model.counted;
  CHECK(a.hits == b.hits && a.misses == b.misses && a.inserted == b.inserted && a.refused == b.refused);
  CHECK(a.evicted == b.evicted && a.expired == b.expired);
}

void compare(const Policy& policy, uint64_t seed, int steps) {
  std::mt19937_64 random(seed);
  HashTable table(spec(), policy);
  Model model(policy);
  for (int step = 0; step < steps; ++step) {
    const Batch batch = random_batch(random, policy.capacity);
    const auto born = model.train(batch);
    if (!born) {
      CHECK_THROWS(std::length_error, train(table, batch), "may be evicted");
    } else {
      const Looked looked = train(table, batch);
      CHECK(looked.born.ids == *born);
      size_t at = 0;
      for (const auto& ids : batch)
        for (int64_t id : ids) {
          const uint32_t slot = looked.slots[at++];
          CHECK((slot != kMissing) == model.alive(id));
          CHECK(slot == kMissing || (table.id_of(slot) == id && first_column(table, slot) == initial(id)));
        }
    }
    agree(table, model, policy.capacity);
    if (random() % 3 == 0) {
      table.advance();
      ++model.clock;
    }
    if (random() % 10 == 0 && !batch[0].empty()) {
      table.erase(batch[0].data(), 1);
      model.erase(batch[0][0]);
    }
  }
}

void compare_all(Eviction eviction, uint64_t seed) {
  for (uint64_t capacity : {1, 2, 7, 65, 200, 1000})
    for (uint32_t min_count : {1, 3})
      for (double probability : {1.0, 0.5})
        compare({capacity, eviction, 3, probability, min_count}, ++seed, capacity < 200 ? 150 : 60);
}

TEST("LRU does what its rules say") { compare_all(Eviction::Lru, 100); }
TEST("LFU does what its rules say") { compare_all(Eviction::Lfu, 200); }
TEST("TTL does what its rules say") { compare_all(Eviction::Ttl, 300); }
TEST("a table without eviction does what its rules say") { compare_all(Eviction::None, 400); }

}  // namespace
}  // namespace hybridrec
