#include "entries.h"

#include <cerrno>

namespace hybridrec {

namespace {

constexpr size_t kUnit = size_t{1} << 20;  // by which a file grows

}  // namespace

void Entries::make_room(size_t bytes) {
  std::lock_guard lock(mutex_);
  file_.grow((*end_ + bytes + kUnit - 1) / kUnit * kUnit);
}

Entry* Entries::add(Entry::Kind kind, uint64_t where, uint64_t bytes) {
  bytes = (bytes + 7) / 8 * 8;
  std::lock_guard lock(mutex_);
  if (*end_ + sizeof(Entry) + bytes > file_.size()) file_.grow((*end_ + sizeof(Entry) + bytes + kUnit - 1) / kUnit * kUnit);
  auto* entry = reinterpret_cast<Entry*>(file_.data() + *end_);
  *entry = {kind, 0, where, bytes};
  in_order();
  *end_ += sizeof(Entry) + bytes;
  in_order();
  return entry;
}

std::vector<Entry*> Entries::all() {
  refuse_truncated(file_, *end_);
  std::vector<Entry*> found;
  for (uint64_t at = start_; at < *end_;) {
    auto* entry = reinterpret_cast<Entry*>(file_.data() + at);
    const uint64_t room = *end_ - at;
    if (room < sizeof(Entry) || entry->bytes % 8 != 0 || entry->bytes > room - sizeof(Entry) || entry->kind < Entry::kBytes ||
        entry->kind > Entry::kValues)
      throw DiskError(file_.path() + " is damaged at byte " + std::to_string(at) + "; restore a checkpoint into a new directory",
                      EINVAL);
    if (entry->done) found.push_back(entry);
    at += sizeof(Entry) + entry->bytes;
  }
  return found;
}

}  // namespace hybridrec
