#include "hash_table.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "philox.h"
#include "records.h"
#include "thread_pool.h"

namespace hybridrec {

using namespace record;

namespace {

constexpr uint64_t kMostRows = 0xFFFFFFFEull;
constexpr int64_t kAhead = 16;          // ids between a fetch and its use
constexpr int64_t kAppended = 1 << 13;  // records that one task writes

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

HashTable::HashTable(const RowSpec& spec, const Policy& policy, std::unique_ptr<Home> from)
    : Table(spec, std::min(policy.capacity, kMostRows), false, std::move(from)),
      policy_(checked(policy)),
      stride_(home ? kStamped : counted() ? kCounted : kUncounted),
      lifetime_(policy.eviction == Eviction::Ttl ? int64_t{policy.ttl_steps} : int64_t{1} << 32),
      drawn_(static_cast<uint64_t>(std::nearbyint(policy.probability * 4294967296.0))),
      index_(rows.most(), home.get()),
      now_(home ? home->standing() : &standing_),
      figures_(home ? home->figures() : &own_figures_) {
  if (policy_.min_count > 1) sketch_ = std::make_unique<Sketch>(rows.most(), policy_.min_count, home.get());
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
    if (const int64_t next = i + kAhead; next < span.count && span.slots[next] != kMissing)
      for (Capture* capture : captures) capture->prefetch_scores(span.slots[next]);
    if (span.slots[i] == kMissing) continue;
    uint8_t* record = records.at(span.slots[i]);
    if (policy_.eviction == Eviction::Lfu || get(touched_in(record)) != now) {
      for (Capture* capture : captures) capture->keep_scores(span.slots[i], record);
      if (home) home->keep_scores(span.slots[i], record);
    }
    touch(record, now, times);
  }
}

int64_t HashTable::find(const IdSpan& span, bool train) {
  train = train && !(home && home->read_only());
  const bool touching = train && captures.empty() && !(home && home->wants_scores());
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
    figures_->hits.fetch_add(span.count - absent, std::memory_order_relaxed);
    figures_->misses.fetch_add(absent, std::memory_order_relaxed);
  }
  return absent;
}

void HashTable::find_again(const IdSpan& span) {
  find(span, false);
  touch_all(span, 0);
}

// Memory for the rows and records of this many rows.
void HashTable::reserve(uint64_t rows) {
  this->rows.grow(rows);
  while (slabs_.size() << kSlabBits < rows) {
    const uint64_t records = std::min(this->rows.most(), uint64_t{1} << kSlabBits);
    pages_.push_back(home ? Pages(home->slab(Home::kRecords, slabs_.size(), records * stride_), records * stride_)
                          : Pages(records * stride_));
    slabs_.push_back(pages_.back().data());
  }
}

// A slot for an id, and the id's place in the index. Its record is for begin to write.
uint32_t HashTable::take(int64_t id) {
  const bool again = now_->free != kMissing;
  const auto slot = again ? now_->free : static_cast<uint32_t>(now_->given);
  changing(&slot, 1);
  index_.insert(id, slot, Keys{records()});
  if (again) now_->free = static_cast<uint32_t>(id_of(slot));
  now_->given += !again;
  ++now_->size;
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
  set_id(record, now_->free);
  set(touched_in(record), kFree);
  now_->free = slot;
  --now_->size;
  ++now_->removals;
}

int64_t HashTable::verify(const IdSpan& span) {
  const Column records = this->records();
  int64_t dropped = 0;
  for (int64_t i = 0; i < span.count; ++i) {
    const uint32_t slot = span.slots[i];
    if (slot == kMissing) continue;
    if (slot < now_->given) {
      uint8_t* record = records.at(slot);
      const uint32_t seen = get(touched_in(record));
      if (id_in(record) == span.ids[i] && seen != kFree && !expired(seen)) continue;
    }
    span.slots[i] = kMissing;
    ++dropped;
  }
  figures_->dropped.fetch_add(dropped, std::memory_order_relaxed);
  return dropped;
}

std::vector<uint32_t> HashTable::live() const {
  std::vector<std::pair<int64_t, uint32_t>> found;
  found.reserve(now_->size);
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

void HashTable::make_room(uint64_t rows) {
  rows = std::min(rows, this->rows.most());
  reserve(rows);
  this->rows.touch();
  for (const Pages& pages : pages_) pages.touch();
  if (now_->given == 0 && !home) index_.reserve(rows);
}

void HashTable::reserve_empty(uint64_t rows) {
  if (rows > this->rows.most()) throw std::length_error("more rows are to be restored than the capacity");
  empty();
  reserve(rows);
  index_.reserve(rows);
}

int64_t HashTable::append(const int64_t* ids, const int64_t* touched, const int64_t* counts, int64_t n) {
  reserve(now_->given + n);
  const uint64_t first = now_->given;
  ThreadPool& pool = ThreadPool::instance();
  pool.run((n + kAppended - 1) / kAppended, [&](int64_t task, int) {
    for (int64_t i = task * kAppended; i < std::min(n, (task + 1) * kAppended); ++i) {
      const auto slot = static_cast<uint32_t>(first + i);
      set_id(records().at(slot), ids[i]);
      set_score(slot, static_cast<uint32_t>(touched[i]), counts ? static_cast<uint32_t>(counts[i]) : 1);
    }
  });
  const int64_t twice = index_.append(ids, n, static_cast<uint32_t>(first), Keys{records()});
  now_->given += n;
  now_->size += n;
  if (twice >= 0) clear();
  return twice;
}

void HashTable::empty() {
  if (home) home->emptying();
  if (home || now_->given > 0) index_.clear();  // else it may have room that was made
  if (sketch_) sketch_->clear();
  now_->removals += now_->size;
  now_->size = now_->given = 0;
  now_->free = kMissing;
}

void HashTable::clear() {
  empty();
  whole();
}

void HashTable::whole() {
  if (home) home->whole();
}

void HashTable::reopen(std::vector<int64_t> widths, std::vector<float> fills) {
  rows.reopen(now_->given, std::move(widths), std::move(fills));
  reserve(now_->given);
}

void HashTable::index_rows(const std::vector<std::pair<int64_t, uint32_t>>& rows) {
  for (const auto& [id, slot] : rows) index_.insert(id, slot, Keys{records()});
}

void HashTable::unindex_rows(const std::vector<std::pair<int64_t, uint32_t>>& rows) {
  for (const auto& [id, slot] : rows) index_.erase(id, slot);
}

Counters HashTable::counters() const {
  const Figures& f = *figures_;
  return {f.hits, f.misses, f.inserted, f.refused, f.evicted, f.expired, f.dropped};
}

Memory HashTable::memory() const {
  Memory memory{};
  memory.keys = now_->given * 8;
  memory.scores = now_->given * (stride_ - 8);
  memory.index = index_.bytes();
  memory.sketch = sketch_ ? sketch_->bytes() : 0;
  for (const Pages& pages : pages_) memory.slack += pages.bytes();
  memory.slack -= now_->given * stride_;
  return memory;
}

}  // namespace hybridrec
