#include "router.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "simd.h"
#include "thread_pool.h"
#include "xxhash64.h"

namespace hybridrec {

namespace {

constexpr uint64_t kOwnerSeed = 1;  // as hybridrec.embedding.share has it; the index of a table hashes with another
constexpr uint64_t kServerSeed = 0x53455256;  // of server 0, as hybridrec.server.placement has it; the next have the next numbers
constexpr uint64_t kScatter = 0x9E3779B97F4A7C15ull;

// From ids to the numbers 0, 1, … in order of first appearance, in which they are written to `ids`. Open addressing, at
// most half full; the places have numbers alone, so that few of them fill a cache.
class Numbers {
 public:
  Numbers(int64_t most, int64_t* ids) : ids_(ids) {
    while ((uint64_t{1} << bits_) < 2 * static_cast<uint64_t>(most)) ++bits_;
    places_.assign(uint64_t{1} << bits_, -1);
  }

  int32_t size() const { return size_; }

  // The number of the id, which is added where it is new.
  int32_t number(int64_t id) {
    const uint64_t mask = places_.size() - 1;
    int32_t* const places = places_.data();
    for (uint64_t at = (static_cast<uint64_t>(id) * kScatter) >> (64 - bits_);; at = (at + 1) & mask) {
      const int32_t found = places[at];
      if (found < 0) return places[at] = add(id);
      if (ids_[found] == id) return found;
    }
  }

  // A number of its own for every occurrence.
  int32_t add(int64_t id) {
    ids_[size_] = id;
    return size_++;
  }

 private:
  int bits_ = 4;
  int32_t size_ = 0;
  int64_t* const ids_;
  std::vector<int32_t> places_;
};

HYBRIDREC_SIMD bool any_outside(const int64_t* ids, int64_t n, int64_t rows) {
  uint64_t found = 0;
  for (int64_t i = 0; i < n; ++i) found |= static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(rows);
  return found != 0;
}

}  // namespace

int64_t owner_of(int64_t id, int64_t count) {
  return static_cast<int64_t>(xxh64_int(static_cast<uint64_t>(id), kOwnerSeed) % static_cast<uint64_t>(count));
}

int64_t server_of(int64_t id, int64_t count) {
  int64_t best = 0;
  uint64_t most = xxh64_int(static_cast<uint64_t>(id), kServerSeed);
  for (int64_t server = 1; server < count; ++server) {
    const uint64_t drawn = xxh64_int(static_cast<uint64_t>(id), kServerSeed + server);
    if (drawn > most) most = drawn, best = server;
  }
  return best;
}

Routed::Routed(const std::vector<Target>& targets, const std::vector<Asked>& asked, const int64_t* values, int world)
    : targets_(targets), asked_(asked), world_(world), ids_(targets.size()), values_(asked.size()),
      hashed_(asked.size()), number_(asked.size()), counts_(targets.size() * world), faults_(targets.size(), Fault{-1, 0, 0}) {
  ThreadPool::instance().run(static_cast<int64_t>(targets_.size()), [&](int64_t target, int) { assign(target, values); });
  for (const Fault& fault : faults_)
    if (fault.feature >= 0 && (!failed() || std::tie(fault.feature, fault.position) < std::tie(fault_.feature, fault_.position)))
      fault_ = fault;
}

template <typename Do>
void Routed::each_feature(size_t target, const Do& act) const {
  for (size_t f = 0; f < asked_.size(); ++f)
    if (asked_[f].target == static_cast<int>(target)) act(f);
}

void Routed::assign(size_t target, const int64_t* values) {
  const Target& table = targets_[target];
  int64_t most = 0;
  bool good = true;
  each_feature(target, [&](size_t f) {
    good = good && settle(f, values);
    most += asked_[f].count;
  });
  if (!good) return;
  const bool marks = !table.every && MarkedRows::suits(table.rows, most);
  marks ? mark(target, most) : number(target, most);
  deal(target);
}

// Where the ids of a feature are, once a policy has seen those outside the table; false after a fault.
bool Routed::settle(size_t feature, const int64_t* values) {
  const Asked& asked = asked_[feature];
  const Target& table = targets_[asked.target];
  const int64_t* ids = values_[feature] = values + asked.start;
  if (table.rows < 0 || table.policy == OutOfRange::Zero || !any_outside(ids, asked.count, table.rows)) return true;
  const auto rows = static_cast<uint64_t>(table.rows);
  const auto outside = [&](int64_t id) { return static_cast<uint64_t>(id) >= rows; };
  if (table.policy == OutOfRange::Error) {
    const int64_t at = std::find_if(ids, ids + asked.count, outside) - ids;
    faults_[asked.target] = {static_cast<int>(feature), at, ids[at]};
    return false;
  }
  std::vector<int64_t>& hashed = hashed_[feature];
  hashed.assign(ids, ids + asked.count);
  for (int64_t& id : hashed)
    if (outside(id)) id = static_cast<int64_t>(xxh64_int(static_cast<uint64_t>(id), 0) % rows);
  values_[feature] = hashed.data();
  return true;
}

void Routed::mark(size_t target, int64_t most) {
  Ids& ids = ids_[target];
  MarkedRows& rows = ids.marked.emplace(targets_[target].rows);
  const std::unique_ptr<int64_t[]> fresh(new int64_t[most]);
  int64_t found = 0;
  each_feature(target, [&](size_t f) { found += rows.mark(values_[f], asked_[f].count, fresh.get() + found); });
  ids.unique.assign(fresh.get(), fresh.get() + found);
  ids.rank.resize(found);
  rows.count();
  rows.rank(ids.unique.data(), found, ids.rank.data());
}

void Routed::number(size_t target, int64_t most) {
  const Target& table = targets_[target];
  Ids& ids = ids_[target];
  ids.unique.resize(most);
  Numbers numbers(table.every ? 0 : most, ids.unique.data());
  each_feature(target, [&](size_t f) {
    number_[f].resize(asked_[f].count);
    for (int64_t i = 0; i < asked_[f].count; ++i) {
      const int64_t id = values_[f][i];
      const bool outside = table.rows >= 0 && static_cast<uint64_t>(id) >= static_cast<uint64_t>(table.rows);
      number_[f][i] = outside ? -1 : table.every ? numbers.add(id) : numbers.number(id);
    }
  });
  ids.unique.resize(numbers.size());
}

// Each distinct id to its holder.
void Routed::deal(size_t target) {
  const Target& table = targets_[target];
  Ids& ids = ids_[target];
  const auto holders = static_cast<uint32_t>(table.holders.size());
  const uint64_t inverse = UINT64_MAX / holders + 1;  // times 2^64 and rounded up: a product in place of a division
  std::vector<int64_t> counts(holders);
  ids.share.resize(ids.unique.size());
  ids.place.resize(ids.unique.size());
  for (size_t u = 0; u < ids.unique.size(); ++u) {
    int64_t& id = ids.unique[u];
    uint32_t share = 0;
    if (holders > 1 && table.served) {
      share = static_cast<uint32_t>(server_of(id, holders));
    } else if (holders > 1 && table.rows < 0) {
      share = static_cast<uint32_t>(owner_of(id, holders));
    } else if (holders > 1) {
      const auto row = static_cast<uint32_t>(id);  // a table has less than 2^32 rows
      const auto called = static_cast<uint32_t>((static_cast<unsigned __int128>(inverse) * row) >> 64);
      share = row - called * holders;
      id = called;
    }
    ids.share[u] = share;
    ids.place[u] = counts[share]++;
  }
  for (uint32_t share = 0; share < holders; ++share) counts_[target * world_ + table.holders[share]] = counts[share];
}

void Routed::fill(const std::vector<int64_t*>& messages, const std::vector<int64_t>& bases,
                  const std::vector<int64_t*>& positions) const {
  ThreadPool::instance().run(static_cast<int64_t>(targets_.size()), [&](int64_t target, int) {
    std::vector<int64_t*> to;
    std::vector<int64_t> first;
    for (const int holder : targets_[target].holders) {
      to.push_back(messages[target * world_ + holder]);
      first.push_back(bases[target * world_ + holder]);
    }
    const Ids& ids = ids_[target];
    std::vector<int64_t> where(ids.unique.size() + 1, -1);  // by rank, or by number
    for (size_t u = 0; u < ids.unique.size(); ++u) {
      to[ids.share[u]][ids.place[u]] = ids.unique[u];
      where[ids.marked ? ids.rank[u] : u] = first[ids.share[u]] + ids.place[u];
    }
    each_feature(target, [&](size_t f) { place(f, where, positions[f]); });
  });
}

// For each value of a feature, where its row will be.
void Routed::place(size_t feature, const std::vector<int64_t>& where, int64_t* out) const {
  const Ids& ids = ids_[asked_[feature].target];
  const int64_t count = asked_[feature].count;
  if (ids.marked) return ids.marked->find(values_[feature], count, where.data(), out);
  const int32_t* numbers = number_[feature].data();
  for (int64_t i = 0; i < count; ++i) out[i] = numbers[i] < 0 ? -1 : where[numbers[i]];
}

}  // namespace hybridrec
