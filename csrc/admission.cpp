// Who comes into a dynamic table, and who goes for it.
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "hash_table.h"
#include "philox.h"

namespace hybridrec {

using namespace record;

namespace {

constexpr size_t kAhead = 8;  // ids between a fetch and its use

struct Candidate {
  int64_t id;
  uint32_t score, slot;

  bool operator<(const Candidate& other) const {
    return score != other.score ? score < other.score : id < other.id;
  }
};

// The `count` lowest of many candidates, in one pass and little memory: whenever twice as many have gathered, the
// upper half goes, and what comes later must be below it.
class Lowest {
 public:
  explicit Lowest(uint64_t count) : count_(count) {}

  void add(const Candidate& candidate) {
    if (bounded_ && !(candidate < bound_)) return;
    kept_.push_back(candidate);
    if (kept_.size() >= 2 * count_) cut();
  }

  const std::vector<Candidate>& take() {
    if (kept_.size() > count_) cut();
    return kept_;
  }

 private:
  void cut() {
    const auto last = kept_.begin() + static_cast<int64_t>(count_) - 1;
    std::nth_element(kept_.begin(), last, kept_.end());
    bound_ = *last;
    bounded_ = true;
    kept_.resize(count_);
  }

  uint64_t count_;
  bool bounded_ = false;
  Candidate bound_{};
  std::vector<Candidate> kept_;
};

}  // namespace

// The ids of a batch that have no slot, each once, in order of first appearance.
struct HashTable::Wanted {
  std::vector<int64_t> ids;
  std::vector<uint32_t> times;   // occurrences
  std::vector<uint32_t> places;  // for each position without a slot, in order: where in `ids` its id is

  explicit Wanted(const std::vector<IdSpan>& spans) {
    size_t positions = 0, size = 16;
    for (const IdSpan& span : spans) positions += std::count(span.slots, span.slots + span.count, kMissing);
    while (size < 2 * positions) size *= 2;
    places.reserve(positions);
    std::vector<uint32_t> known(size, kMissing);  // open addressing: places in `ids`
    for (const IdSpan& span : spans)
      for (int64_t i = 0; i < span.count; ++i)
        if (span.slots[i] == kMissing) note(known, span.ids[i]);
  }

 private:
  void note(std::vector<uint32_t>& known, int64_t id) {
    size_t at = hash_id(id) & (known.size() - 1);
    while (known[at] != kMissing && ids[known[at]] != id) at = (at + 1) & (known.size() - 1);
    if (known[at] == kMissing) {
      known[at] = static_cast<uint32_t>(ids.size());
      ids.push_back(id);
      times.push_back(0);
    }
    ++times[known[at]];
    places.push_back(known[at]);
  }
};

// What becomes of each wanted id.
struct HashTable::Choice {
  enum What : uint8_t { Refused, Present, Reborn, New };

  std::vector<uint32_t> slots;
  std::vector<What> what;
  uint64_t fresh = 0;            // how many are New
  std::vector<uint32_t> reborn;  // slots of expired rows whose ids return, ascending
};

Born HashTable::admit(const std::vector<IdSpan>& spans) { return give(spans, false); }

Born HashTable::put(const int64_t* ids, int64_t n, uint32_t* slots) {
  std::fill(slots, slots + n, kMissing);
  return give({{ids, slots, n}}, true);
}

bool HashTable::drawn(int64_t id) const {
  if (drawn_ >> 32 != 0) return true;
  return philox_of(id, kAdmissionColumn, kDrawUniform, rows.spec().key).word[0] < drawn_;
}

// Decides without changing anything.
HashTable::Choice HashTable::choose(const Wanted& wanted, bool force) {
  Choice choice;
  const size_t n = wanted.ids.size();
  choice.slots.resize(n);
  choice.what.resize(n, Choice::Refused);
  const Column records = this->records();
  const uint64_t room = rows.most() - now_->size;
  index_.find(wanted.ids.data(), static_cast<int64_t>(n), Keys{records}, [&](int64_t i, uint32_t slot) {
    const int64_t id = wanted.ids[i];
    const bool there = slot != kMissing, gone = there && expired(get(touched_in(records.at(slot))));
    choice.slots[i] = there && !gone ? slot : kMissing;
    if (there && !gone) {  // somebody else has admitted it since it was looked for
      choice.what[i] = Choice::Present;
    } else if (force || (drawn(id) && (!sketch_ || sketch_->count(id) + wanted.times[i] >= policy_.min_count))) {
      if (!gone && !force && policy_.eviction == Eviction::None && choice.fresh == room) return;
      choice.what[i] = gone ? Choice::Reborn : Choice::New;
      choice.slots[i] = slot;
      if (gone) choice.reborn.push_back(slot);
      else ++choice.fresh;
    }
  });
  std::sort(choice.reborn.begin(), choice.reborn.end());
  return choice;
}

Born HashTable::give(const std::vector<IdSpan>& spans, bool force) {
  const Wanted wanted(spans);
  Choice choice = choose(wanted, force);
  const size_t n = wanted.ids.size();
  for (size_t i = 0; i < n; ++i)  // before room is made: they are in flight as well
    if (choice.what[i] == Choice::Present) {
      if (home) home->keep_rows(&choice.slots[i], 1);
      touch_all({&wanted.ids[i], &choice.slots[i], 1}, wanted.times[i]);
    }
  const uint64_t room = rows.most() - now_->size;
  if (choice.fresh > room) evict(lowest(choice.fresh - room, choice.reborn));
  Born born = bear(wanted, choice);
  std::vector<Sketch::Seen> seen;
  for (size_t i = 0; i < n; ++i) {
    const int64_t id = wanted.ids[i];
    if (sketch_ && choice.what[i] != Choice::Present && drawn(id)) seen.push_back({id, wanted.times[i]});
    if (choice.what[i] == Choice::Refused) figures_->refused += wanted.times[i];
  }
  if (sketch_) sketch_->add(seen);
  auto place = wanted.places.begin();
  for (const IdSpan& span : spans)
    for (int64_t i = 0; i < span.count; ++i)
      if (span.slots[i] == kMissing) span.slots[i] = choice.slots[*place++];
  return born;
}

Born HashTable::bear(const Wanted& wanted, Choice& choice) {
  Born born;
  born.slots.reserve(choice.fresh + choice.reborn.size());
  born.ids.reserve(choice.fresh + choice.reborn.size());
  reserve(now_->size + choice.fresh);
  changing(choice.reborn.data(), static_cast<int64_t>(choice.reborn.size()));
  try {
    for (size_t i = 0; i < wanted.ids.size(); ++i) {
      if (i + kAhead < wanted.ids.size()) index_.prefetch(wanted.ids[i + kAhead]);
      if (choice.what[i] < Choice::Reborn) continue;
      if (choice.what[i] == Choice::New) choice.slots[i] = take(wanted.ids[i]);
      begin(choice.slots[i], wanted.ids[i], wanted.times[i]);
      born.slots.push_back(choice.slots[i]);
      born.ids.push_back(wanted.ids[i]);
    }
  } catch (...) {  // no memory for the index: a row that nobody will give its values must not stay
    for (uint32_t slot : born.slots) remove(slot);
    throw;
  }
  figures_->inserted += static_cast<int64_t>(born.slots.size());
  figures_->expired += static_cast<int64_t>(choice.reborn.size());
  now_->removals += choice.reborn.size();
  return born;
}

std::vector<uint32_t> HashTable::lowest(uint64_t needed, const std::vector<uint32_t>& kept) const {
  const uint32_t now = clock();
  const bool by_count = policy_.eviction == Eviction::Lfu;
  uint64_t unpinned = 0;
  Lowest candidates(std::max(needed, rows.most() / 64));
  if (policy_.eviction != Eviction::None)
    each([&](uint32_t slot, uint8_t* record) {
      const uint32_t seen = get(touched_in(record));
      if (seen == now || (expired(seen) && std::binary_search(kept.begin(), kept.end(), slot))) return;
      ++unpinned;
      candidates.add({id_in(record), by_count ? std::min(get(count_in(record)), kMostCount) : seen, slot});
    });
  if (unpinned < needed)
    throw std::length_error("table holds " + std::to_string(rows.most()) + " rows and " + std::to_string(needed) +
                            " more are needed, but only " + std::to_string(unpinned) + " may be evicted");
  std::vector<uint32_t> slots;
  for (const Candidate& candidate : candidates.take()) slots.push_back(candidate.slot);
  std::sort(slots.begin(), slots.end(), std::greater<>());  // the lowest is given again first
  return slots;
}

void HashTable::evict(const std::vector<uint32_t>& slots) {
  int64_t gone = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i + 2 * kAhead < slots.size()) __builtin_prefetch(records().at(slots[i + 2 * kAhead]));
    if (i + kAhead < slots.size()) index_.prefetch(id_of(slots[i + kAhead]));
    gone += expired(touched(slots[i]));
    remove(slots[i]);
  }
  figures_->expired += gone;
  figures_->evicted += static_cast<int64_t>(slots.size()) - gone;
}

}  // namespace hybridrec
