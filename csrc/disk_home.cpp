#include "disk_home.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "records.h"

namespace hybridrec {

using namespace record;

// -- opening --------------------------------------------------------------------------------------------------

DiskHome::DiskHome(const RowSpec& spec, const Policy& policy, const Place& place)
    : files_(spec, policy, place), log_(files_), cuts_(files_) {
  if (control().open) log_.undo_bytes();
  files_.open_rows();
  buckets_ = std::make_unique<Buckets>(files_.index());
}

void DiskHome::settle(HashTable& table) {
  table_ = &table;
  cuts_.open();
  const bool empty = control().emptying != 0;
  if (!empty) buckets_->begin_anew(files_.layout().stripes(), stripe_count_);
  table.reopen({live().widths, live().widths + live().states}, {live().fills, live().fills + live().states});
  if (control().open && !empty) {
    log_.undo_rows(RowImages(table));
    live().changes = control().open;  // no number is used twice
    files_.seal();
  }
  in_order();
  control().open = 0;
  files_.settle();
  if (empty) table.clear();
}

Stripe* DiskHome::stripes(size_t count) {
  stripe_count_ = count;
  return files_.layout().stripes();
}

// -- other optimizer state ------------------------------------------------------------------------------------

void DiskHome::attach(const std::vector<int64_t>& widths, const std::vector<float>& fills, uint64_t slabs, uint64_t slab_rows) {
  files_.refuse_reader("optimizer state");
  cuts_.refuse("optimizer state");
  if (widths.size() > 2) throw std::invalid_argument("a table on disk has at most two columns of state");
  files_.make_states(widths, slabs, slab_rows);
  next_widths_ = widths, next_fills_ = fills;
}

void DiskHome::attached() {
  begin(0);
  Live& now = live();
  ++now.generation;
  now.states = static_cast<uint32_t>(next_widths_.size());
  std::copy(next_widths_.begin(), next_widths_.end(), now.widths);
  std::copy(next_fills_.begin(), next_fills_.end(), now.fills);
  const std::string rule = next_rule_.value_or("");
  now.rule_bytes = static_cast<uint32_t>(rule.size());
  std::memcpy(now.rule, rule.data(), rule.size());
  commit({});
  files_.take_states();
  next_rule_.reset();
}

void DiskHome::set_rule(const std::string& rule) {
  if (rule.size() > sizeof(Live::rule)) throw std::invalid_argument("a rule on disk has at most 1024 bytes");
  next_rule_ = rule;
}

// -- changes --------------------------------------------------------------------------------------------------

void DiskHome::begin(uint64_t rows) {
  files_.refuse_reader("rows");
  if (depth_++ > 0) return;
  try {
    log_.restart(rows, RowImages(*table_).whole_bytes());
  } catch (...) {
    depth_ = 0;
    throw;
  }
  number_ = live().changes + 1;
  begun_given_ = live().standing.given;
  in_order();
  control().open = number_;
  in_order();
  keep(&live(), sizeof(Live));
  keep(figures(), sizeof(Figures));
}

void DiskHome::commit(const std::optional<Tag>& tag) {
  if (depth_ == 0) return;  // undone as a whole already
  if (tag) DiskTags(files_.layout()).write(*tag, *this, files_.place().name);
  if (--depth_ > 0) return;
  live().changes = number_;
  files_.seal();
  end_change();
  buckets_->settle();
}

void DiskHome::end_change() {
  in_order();
  control().open = 0;
  in_order();
  log_.trim();
}

void DiskHome::abort() {
  if (depth_ == 0) return;
  depth_ = 0;
  const uint64_t removals = live().standing.removals;
  log_.undo_bytes();
  log_.undo_rows(RowImages(*table_));
  live().standing.removals = removals + 1;  // slots found meanwhile hold no longer
  live().changes = number_;                 // no number is used twice
  files_.seal();
  end_change();
  buckets_->begin_anew(files_.layout().stripes(), stripe_count_);
}

void DiskHome::emptying() {
  files_.refuse_reader("rows");
  cuts_.refuse("all rows");
  control().emptying = 1;
  in_order();
}

void DiskHome::whole() {
  if (!control().emptying) return;
  files_.seal();
  buckets_->begin_anew(files_.layout().stripes(), stripe_count_);
  in_order();
  control().emptying = 0;
  in_order();
}

// -- what is about to change ----------------------------------------------------------------------------------

bool DiskHome::keeps() const {
  if (control().emptying) return false;
  if (depth_ == 0) throw std::logic_error("rows on disk change outside of a change");
  return true;
}

void DiskHome::keep(const void* bytes, size_t n) {
  if (!control().emptying) log_.keep(bytes, n);
}

// The stamp of a row tells whether the change that is being made has kept it.
void DiskHome::keep_rows(const uint32_t* slots, int64_t n) {
  if (!keeps()) return;
  const RowImages images(*table_);
  const Column& records = images.records();
  for (int64_t first = 0; first < n; first += UndoLog::kBatch) {
    uint32_t mine[UndoLog::kBatch];
    uint64_t stamps[UndoLog::kBatch];
    const int64_t count = batch_to_keep(records, slots + first, std::min(UndoLog::kBatch, n - first), mine, stamps);
    if (count == 0) continue;
    const uint8_t* whole = log_.keep_whole(images, mine, count);
    cuts_.keep(images, whole, mine, stamps, count);
    for (int64_t i = 0; i < count; ++i) *stamp_in(records.at(mine[i])) = number_;
  }
}

// Those of the slots that have not been kept, and their stamps; how many.
int64_t DiskHome::batch_to_keep(const Column& records, const uint32_t* slots, int64_t n, uint32_t* mine, uint64_t* stamps) const {
  const uint64_t given = live().standing.given;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i)
    if (slots[i] < given) __builtin_prefetch(records.at(slots[i]), 1);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t slot = slots[i];
    if (slot >= given) continue;  // nobody's, or none
    uint64_t* stamp = stamp_in(records.at(slot));
    if (*stamp == number_) continue;
    if (slot >= begun_given_) *stamp = number_;  // was nobody's before
    else mine[count] = slot, stamps[count++] = *stamp;
  }
  return count;
}

// Cuts ask for stamps. Without one, records are left alone, which saves a step a cache miss per row: a row that is kept
// twice is copied back last one first, so that the oldest wins.
void DiskHome::keep_values(const uint32_t* slots, int64_t n) {
  if (!cuts_.empty()) return keep_rows(slots, n);
  if (keeps()) log_.keep_values(RowImages(*table_), slots, n);
}

void DiskHome::keep_scores(uint32_t slot, uint8_t* record) {
  if (counting()) log_.keep_scores(slot, record);
  cuts_.keep_scores(slot, record);
}

// -- tags and cuts --------------------------------------------------------------------------------------------

void DiskHome::forget_tag(uint64_t source) {
  DiskTags tags(files_.layout());
  if (!tags.has(source)) return;
  begin(0);
  tags.forget(source, *this);
  commit({});
}

void DiskHome::cut(const std::string& name) {
  cuts_.refuse_name(name);
  begin(0);  // a change of its own, whose number tells which cut was first
  commit({});
  cuts_.make(name, table_->sketch());
}

}  // namespace hybridrec
