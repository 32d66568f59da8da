#include "disk_tags.h"

#include <stdexcept>

namespace hybridrec {

uint64_t DiskTags::count() const {
  uint64_t count = 0;
  while (count < kTags && slots_[count].used) ++count;
  return count;
}

uint64_t DiskTags::find(uint64_t source) const {
  uint64_t at = 0;
  while (at < kTags && slots_[at].used && slots_[at].tag.source != source) ++at;
  return at;
}

std::vector<Tag> DiskTags::all() const {
  std::vector<Tag> found;
  for (uint64_t at = 0; at < count(); ++at) found.push_back(slots_[at].tag);
  return found;
}

void DiskTags::write(const Tag& tag, Home& home, const std::string& table) {
  const uint64_t at = find(tag.source);
  if (at == kTags)
    throw std::length_error("table " + table + " has tags of " + std::to_string(kTags) + " sources; forget one of them first");
  home.keep(&slots_[at], sizeof(TagSlot));
  slots_[at] = {tag, 1};
}

void DiskTags::forget(uint64_t source, Home& home) {
  const uint64_t at = find(source), last = count() - 1;
  home.keep(&slots_[at], sizeof(TagSlot));
  home.keep(&slots_[last], sizeof(TagSlot));
  slots_[at] = slots_[last];
  slots_[last] = {};
}

}  // namespace hybridrec
