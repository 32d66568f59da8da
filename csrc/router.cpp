#include "router.h"

#include <tuple>

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
    : targets_(targets), asked_(asked), world_(world), ids_(targets.size()), number_(asked.size()),
      counts_(targets.size() * world), faults_(targets.size(), Fault{-1, 0, 0}) {
  ThreadPool::instance().run(static_cast<int64_t>(targets_.size()), [&](int64_t target, int) { assign(target, values); });
  for (const Fault& fault : faults_)
    if (fault.feature >= 0 && (!failed() || std::tie(fault.feature, fault.position) < std::tie(fault_.feature, fault_.position)))
      fault_ = fault;
}

void Routed::assign(size_t target, const int64_t* values) {
  const Target& table = targets_[target];
  Ids& ids = ids_[target];
  int64_t most = 0;
  for (const Asked& asked : asked_)
    if (asked.target == static_cast<int>(target)) most += asked.count;
  ids.unique.resize(most);
  Numbers numbers(table.every ? 0 : most, ids.unique.data());
  for (size_t f = 0; f < asked_.size(); ++f) {
    if (asked_[f].target != static_cast<int>(target)) continue;
    number_[f].resize(asked_[f].count);
    for (int64_t i = 0; i < asked_[f].count; ++i) {
      int64_t id = values[asked_[f].start + i];
      if (table.rows >= 0 && static_cast<uint64_t>(id) >= static_cast<uint64_t>(table.rows)) {
        if (table.policy == OutOfRange::Error) {
          faults_[target] = {static_cast<int>(f), i, id};
          return;
        }
        if (table.policy == OutOfRange::Zero) {
          number_[f][i] = -1;
          continue;
        }
        id = static_cast<int64_t>(xxh64_int(static_cast<uint64_t>(id), 0) % static_cast<uint64_t>(table.rows));
      }
      number_[f][i] = table.every ? numbers.add(id) : numbers.number(id);
    }
  }
  ids.unique.resize(numbers.size());
  deal(target);
}

// Each distinct id to its holder.
void Routed::deal(size_t target) {
  const Target& table = targets_[target];
  Ids& ids = ids_[target];
  const auto holders = static_cast<uint32_t>(table.holders.size());
  ids.holder.resize(ids.unique.size());
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
      share = row % holders;
      id = row / holders;
    }
    ids.holder[u] = table.holders[share];
    ids.place[u] = counts_[target * world_ + ids.holder[u]]++;
  }
}

void Routed::fill(const std::vector<int64_t*>& messages, const std::vector<int64_t>& bases,
                  const std::vector<int64_t*>& positions) const {
  ThreadPool::instance().run(static_cast<int64_t>(targets_.size()), [&](int64_t target, int) {
    const Ids& ids = ids_[target];
    const size_t line = target * world_;
    for (size_t u = 0; u < ids.unique.size(); ++u) messages[line + ids.holder[u]][ids.place[u]] = ids.unique[u];
    for (size_t f = 0; f < asked_.size(); ++f) {
      if (asked_[f].target != static_cast<int>(target)) continue;
      for (int64_t i = 0; i < asked_[f].count; ++i) {
        const int32_t number = number_[f][i];
        positions[f][i] = number < 0 ? -1 : bases[line + ids.holder[number]] + ids.place[number];
      }
    }
  });
}

}  // namespace hybridrec
