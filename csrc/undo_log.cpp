#include "undo_log.h"

#include <algorithm>
#include <cstring>

namespace hybridrec {

namespace {

constexpr size_t kReserve = size_t{1} << 36, kKept = size_t{64} << 20;
constexpr int64_t kAhead = 8;  // rows between a fetch and its use
constexpr int64_t kLine = 64;

// In an entry of values, the slots come first, and images from the next cache line on.
uint8_t* after_slots(uint8_t* slots, int64_t n) {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(slots + 4 * n) + kLine - 1) / kLine * kLine);
}

}  // namespace

UndoLog::UndoLog(DiskFiles& files) : files_(files), entries_(files.path("log"), files.access(), kReserve) {
  entries_.use(0, &files.control().end);
}

void UndoLog::restart(uint64_t rows, int64_t row_bytes) {
  entries_.restart();
  entries_.make_room(rows * row_bytes + (rows / kBatch + 64) * (sizeof(Entry) + kLine) + sizeof(Live) + sizeof(Figures));
}

void UndoLog::keep(const void* bytes, size_t n) {
  Entry* entry = entries_.add(Entry::kBytes, files_.where(bytes), n);
  std::memcpy(entry->data(), bytes, n);
  Entries::finish(entry);
}

const uint8_t* UndoLog::keep_whole(const RowImages& images, const uint32_t* slots, int64_t n) {
  Entry* entry = entries_.add(Entry::kRows, static_cast<uint64_t>(n), n * images.whole_bytes());
  uint8_t* to = entry->data();
  for (int64_t i = 0; i < std::min(kAhead, n); ++i) images.fetch(slots[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) images.fetch(slots[i + kAhead]);
    to = images.write_whole(to, slots[i]);
  }
  Entries::finish(entry);
  return entry->data();
}

void UndoLog::keep_values(const RowImages& images, const uint32_t* slots, int64_t n) {
  Entry* entry = entries_.add(Entry::kValues, static_cast<uint64_t>(n), 4 * n + kLine + n * images.bytes());
  std::memcpy(entry->data(), slots, 4 * n);
  uint8_t* to = after_slots(entry->data(), n);
  for (int64_t i = 0; i < std::min(kAhead, n); ++i) images.fetch(slots[i]);
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) images.fetch(slots[i + kAhead]);
    to = images.write(to, slots[i]);
  }
  Entries::finish(entry);
}

void UndoLog::keep_scores(uint32_t slot, uint8_t* record) {
  const uint32_t scores[2] = {record::get(record::touched_in(record)), record::get(record::count_in(record))};
  Entry* entry = entries_.add(Entry::kScores, slot, sizeof scores);
  std::memcpy(entry->data(), scores, sizeof scores);
  Entries::finish(entry);
}

void UndoLog::undo_bytes() {
  auto entries = entries_.all();
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
    if ((*entry)->kind == Entry::kBytes) std::memcpy(files_.address((*entry)->where), (*entry)->data(), (*entry)->bytes);
}

void UndoLog::undo_rows(const RowImages& images) {
  auto entries = entries_.all();
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const auto n = static_cast<int64_t>((*entry)->where);
    uint8_t* slots = (*entry)->data();
    const uint8_t* from = (*entry)->kind == Entry::kValues ? after_slots(slots, n) : slots;
    if ((*entry)->kind == Entry::kScores) std::memcpy(images.records().at(static_cast<uint32_t>(n)) + 8, from, 8);
    if ((*entry)->kind == Entry::kRows)
      for (int64_t i = 0; i < n; ++i) from = images.read_whole(from);
    if ((*entry)->kind == Entry::kValues)
      for (int64_t i = 0; i < n; ++i) {
        uint32_t slot;
        std::memcpy(&slot, slots + 4 * i, 4);
        from = images.read(from, slot);
      }
  }
}

void UndoLog::trim() {
  if (entries_.file().size() > 4 * kKept) entries_.file().shrink(kKept);
}

}  // namespace hybridrec
