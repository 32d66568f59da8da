#include "capture.h"

#include <algorithm>
#include <cstring>
#include <shared_mutex>

#include "records.h"
#include "table.h"

namespace hybridrec {

using namespace record;

namespace {

constexpr uint32_t kNothing = 0xFFFFFFFFu;      // the place of a slot that had no row
constexpr uint64_t kBlock = uint64_t{1} << 20;  // bytes of kept rows
constexpr int64_t kAhead = 8;                   // rows between a fetch and its use
constexpr int64_t kBatch = 512;                 // rows kept at a time

uint32_t* numbers(const Pages& pages) { return reinterpret_cast<uint32_t*>(pages.data()); }

}  // namespace

Capture::Capture(std::shared_ptr<Table> table) : table_(std::move(table)) {
  std::unique_lock lock(table_->lock());
  slots_ = table_->slots();
  record_ = table_->records().stride;
  for (int k = 0; k < table_->rows.states(); ++k) widths_.push_back(table_->rows.width(k));
  kept_row_ = (record_ ? 8 : 0) + table_->rows.row_bytes() + table_->rows.state_bytes();
  place_pages_ = Pages(4 * slots_);
  touched_pages_ = Pages(record_ ? 4 * slots_ : 0);
  count_pages_ = Pages(table_->counted() ? 4 * slots_ : 0);
  places_ = numbers(place_pages_), touched_ = numbers(touched_pages_), counts_ = numbers(count_pages_);
  block_rows_ = std::max<uint64_t>(1, std::min(slots_, kBlock / kept_row_));
  block_bytes_ = block_rows_ == slots_ ? slots_ * kept_row_ : std::max<uint64_t>(kBlock, kept_row_);
  blocks_.reserve(slots_ / block_rows_ + 1);
  table_->captures.push_back(this);
}

Capture::~Capture() {
  std::unique_lock lock(table_->lock());
  auto& captures = table_->captures;
  captures.erase(std::find(captures.begin(), captures.end(), this));
}

// While nothing of the slot is kept, its record in the table is that of the moment, but for the scores.
bool Capture::had_row(uint32_t slot) const {
  if (places_[slot] != 0) return places_[slot] != kNothing;
  return record_ == 0 || get(touched_in(table_->records().at(slot))) != kFree;
}

std::vector<uint32_t> Capture::used(uint64_t first, uint64_t last) const {
  std::shared_lock lock(table_->lock());
  std::vector<uint32_t> found;
  for (uint64_t slot = first; slot < std::min(last, slots_); ++slot)
    if (had_row(static_cast<uint32_t>(slot))) found.push_back(static_cast<uint32_t>(slot));
  return found;
}

// A thread writes to a record after it has kept its scores. So whoever reads the record first and then finds nothing
// kept has read the scores of the moment: also a second thread that keeps them, which then keeps the same.
void Capture::keep_scores(uint32_t slot, uint8_t* record) {
  if (!ahead(slot)) return;
  const uint32_t touched = get(touched_in(record)), count = counts_ ? get(count_in(record)) : 0;
  if (get(touched_ + slot) != 0) return;
  if (counts_) set(counts_ + slot, count);
  set(touched_ + slot, touched + 1);
}

Capture::Scores Capture::scores(uint32_t slot, uint8_t* record) const {
  const uint32_t touched = get(touched_in(record)), count = counts_ ? get(count_in(record)) : 0;
  const uint32_t kept = get(touched_ + slot);
  if (kept == 0) return {touched, std::min(count, kMostCount)};
  return {kept - 1, counts_ ? std::min(get(counts_ + slot), kMostCount) : 0};
}

void Capture::fetch(uint32_t slot) const {
  const Rows& rows = table_->rows;
  const auto lines = [&](const Column& column) {
    for (int64_t byte = 0; byte < column.stride; byte += 64) __builtin_prefetch(column.at(slot) + byte);
  };
  lines(rows.column());
  for (int k = 0; k < rows.states(); ++k) lines(rows.state(k));
  if (record_ == 0) return;
  lines(table_->records());
  __builtin_prefetch(touched_ + slot);
}

void Capture::keep(const uint32_t* slots, int64_t n) {
  for (int64_t first = 0; first < n; first += kBatch) keep_batch(slots + first, std::min(kBatch, n - first));
}

void Capture::keep_batch(const uint32_t* slots, int64_t n) {
  uint32_t mine[kBatch];
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t next = std::min(i + 2 * kAhead, n - 1);
    if (slots[next] < slots_) __builtin_prefetch(places_ + slots[next]);
    if (wanted(slots[i])) mine[count++] = slots[i];
  }
  if (count == 0) return;
  uint64_t place = used_.fetch_add(count), end = place + count;
  {
    std::lock_guard lock(growing_);
    while (blocks_.size() * block_rows_ < end) blocks_.emplace_back(block_bytes_);
  }
  const Rows& rows = table_->rows;
  const Column records = table_->records();
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) fetch(mine[i + kAhead]);
    const uint32_t slot = mine[i];
    if (places_[slot] != 0) continue;
    if (!had_row(slot)) {
      places_[slot] = kNothing;
      continue;
    }
    uint8_t* to = kept(static_cast<uint32_t>(place));
    if (record_) {
      keep_scores(slot, records.at(slot));
      std::memcpy(to, records.at(slot), 8);
      to += 8;
    }
    std::memcpy(to, rows.column().at(slot), rows.row_bytes());
    to += rows.row_bytes();
    for (int k = 0; k < rows.states(); ++k) {
      std::memcpy(to, rows.state(k).at(slot), 4 * rows.width(k));
      to += 4 * rows.width(k);
    }
    places_[slot] = static_cast<uint32_t>(++place);
  }
  used_.compare_exchange_strong(end, place);  // less than was counted, where a slot was there twice or had no row
}

void Capture::keep_all() {
  std::vector<uint32_t> slots;
  for (uint64_t slot = passed_; slot < slots_; ++slot) slots.push_back(static_cast<uint32_t>(slot));
  keep(slots.data(), static_cast<int64_t>(slots.size()));
}

void Capture::read(const uint32_t* slots, int64_t n, const Columns& to) {
  std::shared_lock lock(table_->lock());
  const Rows& rows = table_->rows;
  const Column records = table_->records();
  const int64_t bytes = rows.row_bytes();
  // State widths are those of the moment: a change of the rule has kept all rows, and left nothing to read here.
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t slot = slots[i], place = places_[slot];
    const uint8_t* from = place ? kept(place - 1) : nullptr;
    to.ids[i] = table_->rows.spec().id_of(slot);
    if (record_) {
      uint8_t* record = records.at(slot);
      to.ids[i] = id_in(from ? from : record);
      const Scores found = scores(slot, record);
      to.touched[i] = found.touched, to.counts[i] = found.count;
      if (from) from += 8;
    }
    std::memcpy(to.rows + i * bytes, from ? from : rows.column().at(slot), bytes);
    if (from) from += bytes;
    for (size_t k = 0; k < to.states.size(); ++k) {
      const int64_t width = widths_[k];
      std::memcpy(to.states[k] + i * width, from ? from : rows.state(static_cast<int>(k)).at(slot), 4 * width);
      if (from) from += 4 * width;
    }
  }
  if (n > 0) passed_.store(uint64_t{slots[n - 1]} + 1, std::memory_order_release);
}

}  // namespace hybridrec
