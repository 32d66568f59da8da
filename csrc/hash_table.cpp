#include "hash_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>

#include "philox.h"
#include "records.h"
#include "thread_pool.h"

namespace hybridrec {

namespace {

constexpr uint64_t kMostRows = 0xFFFFFFFEull;
constexpr size_t kAhead = 8;                  // ids between a fetch and its use
constexpr int64_t kAppended = 1 << 13;        // records that one task writes

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

Policy checked(const Policy& policy) {
  if (policy.capacity == 0) throw std::invalid_argument("a table has a capacity of at least 1 row, not 0");
  if (!(policy.probability >= 0 && policy.probability <= 1))
    throw std::invalid_argument("a probability is within [0, 1], not " + std::to_string(policy.probability));
  if (policy.min_count > 0xFFFF)
    throw std::invalid_argument("a minimum count is at most 65535, not " + std::to_string(policy.min_count));
  return policy;
}

}  // namespace

Eviction eviction_kind(const std::string& name) {
  if (name == "none") return Eviction::None;
  if (name == "lru") return Eviction::Lru;
  if (name == "lfu") return Eviction::Lfu;
  if (name == "ttl") return Eviction::Ttl;
  throw std::invalid_argument("eviction is none, lru, lfu or ttl, not " + name);
}

struct HashTable::Keys {
  Column records;

  int64_t operator()(uint32_t slot) const { return id_in(records.at(slot)); }
  void prefetch(uint32_t slot) const { __builtin_prefetch(records.at(slot)); }
};

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

HashTable::HashTable(const RowSpec& spec, const Policy& policy)
    : Table(spec, std::min(policy.capacity, kMostRows), false),
      policy_(checked(policy)),
      stride_(policy.eviction == Eviction::Lfu ? kCounted : kUncounted),
      lifetime_(policy.eviction == Eviction::Ttl ? int64_t{policy.ttl_steps} : int64_t{1} << 32),
      drawn_(static_cast<uint64_t>(std::nearbyint(policy.probability * 4294967296.0))),
      index_(rows.most()) {
  if (policy_.min_count > 1) sketch_ = std::make_unique<Sketch>(rows.most(), policy_.min_count);
}

template <typename Visit>
void HashTable::each(Visit visit) const {
  const uint64_t slab = uint64_t{1} << kSlabBits;
  for (uint64_t first = 0; first < given_; first += slab) {
    uint8_t* record = slabs_[first >> kSlabBits];
    for (uint64_t slot = first; slot < std::min(given_, first + slab); ++slot, record += stride_)
      if (get(touched_in(record)) != kFree) visit(static_cast<uint32_t>(slot), record);
  }
}

void HashTable::touch(uint8_t* record, uint32_t now, uint32_t times) const {
  // The first touch in a step is as likely as not, so a branch would be mispredicted; and a row touched already is not
  // written to, so that a hot row's line stays shared between threads.
  uint32_t nowhere;
  uint32_t* touched = touched_in(record);
  set(get(touched) == now ? &nowhere : touched, now);
  if (policy_.eviction != Eviction::Lfu) return;
  const uint32_t count = get(count_in(record));
  if (count < kMostCount) __atomic_fetch_add(count_in(record), std::min(times, kMostCount - count), __ATOMIC_RELEASE);
}

// Captures have the scores first.
void HashTable::touch_all(const IdSpan& span, uint32_t times) const {
  const Column records = this->records();
  const uint32_t now = clock();
  for (int64_t i = 0; i < span.count; ++i) {
    if (const int64_t next = i + 2 * kAhead; next < span.count && span.slots[next] != kMissing)
      for (Capture* capture : captures) capture->prefetch_scores(span.slots[next]);
    if (span.slots[i] == kMissing) continue;
    uint8_t* record = records.at(span.slots[i]);
    if (policy_.eviction == Eviction::Lfu || get(touched_in(record)) != now)
      for (Capture* capture : captures) capture->keep_scores(span.slots[i], record);
    touch(record, now, times);
  }
}

int64_t HashTable::find(const IdSpan& span, bool train) {
  const bool touching = train && captures.empty();
  const Column records = this->records();
  const uint32_t now = clock();
  int64_t absent = 0;
  index_.find(span.ids, span.count, Keys{records}, [&](int64_t i, uint32_t slot) {
    if (slot != kMissing) {
      uint8_t* record = records.at(slot);
      if (expired(get(touched_in(record)))) slot = kMissing;
      else if (touching) touch(record, now, 1);
    }
    span.slots[i] = slot;
    absent += slot == kMissing;
  });
  if (train && !touching) touch_all(span, 1);
  if (train) {
    hits_.fetch_add(span.count - absent, std::memory_order_relaxed);
    misses_.fetch_add(absent, std::memory_order_relaxed);
  }
  return absent;
}

void HashTable::find_again(const IdSpan& span) {
  find(span, false);
  touch_all(span, 0);
}

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
  const uint64_t room = rows.most() - size_;
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
    if (choice.what[i] == Choice::Present) touch_all({&wanted.ids[i], &choice.slots[i], 1}, wanted.times[i]);
  const uint64_t room = rows.most() - size_;
  if (choice.fresh > room) evict(lowest(choice.fresh - room, choice.reborn));
  Born born = bear(wanted, choice);
  for (size_t i = 0; i < n; ++i) {
    const int64_t id = wanted.ids[i];
    if (sketch_ && choice.what[i] != Choice::Present && drawn(id)) sketch_->add(id, wanted.times[i]);
    if (choice.what[i] == Choice::Refused) refused_ += wanted.times[i];
  }
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
  reserve(size_ + choice.fresh);
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
  inserted_ += static_cast<int64_t>(born.slots.size());
  expired_ += static_cast<int64_t>(choice.reborn.size());
  removals_ += choice.reborn.size();
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
  expired_ += gone;
  evicted_ += static_cast<int64_t>(slots.size()) - gone;
}

// Memory for the rows and records of this many rows.
void HashTable::reserve(uint64_t rows) {
  this->rows.grow(rows);
  while (slabs_.size() << kSlabBits < rows) {
    const uint64_t records = std::min(this->rows.most(), uint64_t{1} << kSlabBits);
    pages_.emplace_back(records * stride_);
    slabs_.push_back(pages_.back().data());
  }
}

// A slot for an id, and the id's place in the index. Its record is for begin to write.
uint32_t HashTable::take(int64_t id) {
  const bool again = free_ != kMissing;
  const auto slot = again ? free_ : static_cast<uint32_t>(given_);
  changing(&slot, 1);
  index_.insert(id, slot, Keys{records()});
  if (again) free_ = static_cast<uint32_t>(id_of(slot));
  given_ += !again;
  ++size_;
  return slot;
}

void HashTable::begin(uint32_t slot, int64_t id, uint32_t times) {
  uint8_t* record = records().at(slot);
  set_id(record, id);
  set(touched_in(record), clock());
  if (policy_.eviction == Eviction::Lfu) set(count_in(record), times);
}

void HashTable::remove(uint32_t slot) {
  changing(&slot, 1);
  uint8_t* record = records().at(slot);
  index_.erase(id_in(record), slot);
  set_id(record, free_);
  set(touched_in(record), kFree);
  free_ = slot;
  --size_;
  ++removals_;
}

int64_t HashTable::verify(const IdSpan& span) {
  const Column records = this->records();
  int64_t dropped = 0;
  for (int64_t i = 0; i < span.count; ++i) {
    const uint32_t slot = span.slots[i];
    if (slot == kMissing) continue;
    if (slot < given_) {
      uint8_t* record = records.at(slot);
      const uint32_t seen = get(touched_in(record));
      if (id_in(record) == span.ids[i] && seen != kFree && !expired(seen)) continue;
    }
    span.slots[i] = kMissing;
    ++dropped;
  }
  dropped_.fetch_add(dropped, std::memory_order_relaxed);
  return dropped;
}

std::vector<uint32_t> HashTable::live() const {
  std::vector<std::pair<int64_t, uint32_t>> found;
  found.reserve(size_);
  each([&](uint32_t slot, uint8_t* record) {
    if (!expired(get(touched_in(record)))) found.emplace_back(id_in(record), slot);
  });
  std::sort(found.begin(), found.end());
  std::vector<uint32_t> slots;
  slots.reserve(found.size());
  for (const auto& [id, slot] : found) slots.push_back(slot);
  return slots;
}

int64_t HashTable::id_of(uint32_t slot) const { return id_in(records().at(slot)); }

uint32_t HashTable::touched(uint32_t slot) const { return get(touched_in(records().at(slot))); }

uint32_t HashTable::count(uint32_t slot) const {
  return policy_.eviction == Eviction::Lfu ? std::min(get(count_in(records().at(slot))), kMostCount) : 0;
}

void HashTable::set_score(uint32_t slot, uint32_t touched, uint32_t count) {
  uint8_t* record = records().at(slot);
  set(touched_in(record), std::min(touched, kFree - 1));
  if (policy_.eviction == Eviction::Lfu) set(count_in(record), count);
}

void HashTable::erase(const int64_t* ids, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t slot = index_.find(ids[i], Keys{records()});
    if (slot != kMissing) remove(slot);
  }
}

void HashTable::reserve_empty(uint64_t rows) {
  clear();
  if (rows > this->rows.most()) throw std::length_error("more rows are to be restored than the capacity");
  reserve(rows);
  index_.reserve(rows);
}

int64_t HashTable::append(const int64_t* ids, const int64_t* touched, const int64_t* counts, int64_t n) {
  reserve(given_ + n);
  const uint64_t first = given_;
  ThreadPool& pool = ThreadPool::instance();
  pool.run((n + kAppended - 1) / kAppended, [&](int64_t task, int) {
    for (int64_t i = task * kAppended; i < std::min(n, (task + 1) * kAppended); ++i) {
      const auto slot = static_cast<uint32_t>(first + i);
      set_id(records().at(slot), ids[i]);
      set_score(slot, static_cast<uint32_t>(touched[i]), counts ? static_cast<uint32_t>(counts[i]) : 1);
    }
  });
  const int64_t twice = index_.append(ids, n, static_cast<uint32_t>(first), Keys{records()});
  given_ += n;
  size_ += n;
  if (twice >= 0) clear();
  return twice;
}

void HashTable::clear() {
  index_.clear();
  if (sketch_) sketch_->clear();
  removals_ += size_;
  size_ = given_ = 0;
  free_ = kMissing;
}

Counters HashTable::counters() const {
  return {hits_, misses_, inserted_, refused_, evicted_, expired_, dropped_};
}

Memory HashTable::memory() const {
  Memory memory{};
  memory.keys = given_ * 8;
  memory.scores = given_ * (stride_ - 8);
  memory.index = index_.bytes();
  memory.sketch = sketch_ ? sketch_->bytes() : 0;
  for (const Pages& pages : pages_) memory.slack += pages.bytes();
  memory.slack -= given_ * stride_;
  return memory;
}

}  // namespace hybridrec
