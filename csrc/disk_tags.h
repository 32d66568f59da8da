// Tags of a table on disk: of each source, that of its last change. They lie side by side in the header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "disk_layout.h"

namespace hybridrec {

class DiskTags {
 public:
  explicit DiskTags(const Layout& layout) : slots_(layout.tags()) {}

  std::vector<Tag> all() const;
  // Within a change, whose home keeps what they were.
  void write(const Tag& tag, Home& home, const std::string& table);
  bool has(uint64_t source) const { return find(source) < count(); }
  void forget(uint64_t source, Home& home);  // of a source that has one

 private:
  uint64_t count() const;
  uint64_t find(uint64_t source) const;  // where it is, or where there is room for it

  TagSlot* slots_;
};

}  // namespace hybridrec
