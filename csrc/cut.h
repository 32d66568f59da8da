// A moment to go back to: what rows were then that have changed since, and the rest of the table as it was.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "disk_layout.h"
#include "entries.h"

namespace hybridrec {

class Cut {
 public:
  // Written beside and renamed, so that a file by its name is whole. `sketch` may be null.
  static std::unique_ptr<Cut> make(const std::string& path, const std::string& name, const Layout& table, const uint8_t* sketch,
                                   size_t sketch_bytes, size_t reserve);
  Cut(const std::string& path, std::string name, Access access, size_t reserve);

  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  uint64_t number() const { return head().number; }  // of the last change before
  uint64_t generation() const { return head().generation; }
  uint64_t given() const { return head().standing.given; }
  uint32_t clock() const;
  const Standing& standing() const { return head().standing; }
  const uint8_t* figures() const { return head().figures; }
  const TagSlot* tags() const { return reinterpret_cast<const TagSlot*>(data() + kTagsAt); }
  const uint8_t* sketch() const { return data() + kSketchAt; }
  size_t sketch_bytes() const { return head().sketch_bytes; }
  Entries& entries() { return entries_; }

 private:
  static constexpr size_t kTagsAt = 4096, kSketchAt = kTagsAt + kTags * sizeof(TagSlot);

  // The rest, but for `end`, never changes.
  struct Head {
    char magic[16];
    uint32_t format, unused;
    uint64_t checksum;
    uint64_t number, generation, sketch_bytes;
    Standing standing;
    uint8_t figures[sizeof(Figures)];
    uint64_t end;  // of the entries
  };
  Head& head() const { return *reinterpret_cast<Head*>(data()); }
  uint8_t* data() const { return entries_.file().data(); }
  uint64_t sum() const;
  void check() const;

  std::string path_, name_;
  mutable Entries entries_;
};

}  // namespace hybridrec
