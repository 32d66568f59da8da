#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cuts.h"
#include "records.h"

namespace hybridrec {

using namespace record;

namespace {

// Slots whose rows or scores may be others than at the cut, in ascending order.
std::vector<uint32_t> slots_in(const std::vector<Entry*>& entries, int64_t image) {
  std::vector<uint32_t> slots;
  for (const Entry* entry : entries)
    if (entry->kind == Entry::kScores) slots.push_back(static_cast<uint32_t>(entry->where));
    else
      for (uint64_t i = 0; i < entry->where; ++i) slots.push_back(RowImages::slot_of(entry->data() + i * image));
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

// Those of the slots that have a row, with its id.
std::vector<std::pair<int64_t, uint32_t>> with_ids(const Column& records, const std::vector<uint32_t>& slots) {
  std::vector<std::pair<int64_t, uint32_t>> found;
  for (const uint32_t slot : slots)
    if (get(touched_in(records.at(slot))) != kFree) found.emplace_back(id_in(records.at(slot)), slot);
  return found;
}

// Has rows kept by the change that is being made; going back is no change of a row, so their stamps stay.
void keep_rows(HashTable& table, const std::vector<uint32_t>& slots) {
  const Column records = table.records();
  std::vector<uint64_t> stamps;
  for (const uint32_t slot : slots) stamps.push_back(*stamp_in(records.at(slot)));
  table.changing(slots.data(), static_cast<int64_t>(slots.size()));
  for (size_t i = 0; i < slots.size(); ++i) *stamp_in(records.at(slots[i])) = stamps[i];
}

// Last one first, so that the oldest wins.
void write_back(const HashTable& table, const std::vector<Entry*>& entries) {
  const RowImages images(table);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const uint8_t* from = (*entry)->data();
    if ((*entry)->kind == Entry::kScores) std::memcpy(images.records().at(static_cast<uint32_t>((*entry)->where)) + 8, from, 8);
    else
      for (uint64_t i = 0; i < (*entry)->where; ++i) from = images.read_whole(from);
  }
}

// All that is not of a row.
void restore_rest(HashTable& table, DiskFiles& files, const Cut& cut) {
  const Layout layout = files.layout();
  Standing& standing = files.live().standing;
  const uint64_t removals = standing.removals + 1;
  standing = cut.standing();
  standing.removals = removals;  // slots found before hold no longer
  std::memcpy(static_cast<void*>(layout.figures()), cut.figures(), sizeof(Figures));
  table.home->keep(layout.tags(), kTags * sizeof(TagSlot));
  std::memcpy(layout.tags(), cut.tags(), kTags * sizeof(TagSlot));
  if (cut.sketch_bytes() == 0) return;
  table.home->keep(files.sketch().data(), cut.sketch_bytes());
  std::memcpy(files.sketch().data(), cut.sketch(), cut.sketch_bytes());
}

}  // namespace

void roll_back(HashTable& table, DiskFiles& files, Cuts& cuts, const std::string& name) {
  Cut& cut = cuts.find(name);
  files.refuse_reader("rows");
  const auto entries = cut.entries().all();
  const auto slots = slots_in(entries, RowImages(table).whole_bytes());
  Change change(table, slots.size());
  keep_rows(table, slots);
  const Column records = table.records();
  auto gone = with_ids(records, slots);
  std::vector<uint32_t> come;  // since the cut
  for (uint64_t slot = cut.given(); slot < files.live().standing.given; ++slot) come.push_back(static_cast<uint32_t>(slot));
  table.changing(come.data(), static_cast<int64_t>(come.size()));
  for (const auto& row : with_ids(records, come)) gone.push_back(row);
  table.unindex_rows(gone);
  write_back(table, entries);
  table.index_rows(with_ids(records, slots));
  restore_rest(table, files, cut);
  change.done();
  cut.entries().restart();
  cuts.forget_after(cut);
}

}  // namespace hybridrec
