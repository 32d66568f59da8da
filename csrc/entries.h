// A file of what was before: entries one after another, in the order in which they were added. An entry is there as soon
// as `add` returns, and counts once it is `done`.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "mapped_file.h"

namespace hybridrec {

struct Entry {
  enum Kind : uint32_t { kBytes = 1, kRows = 2, kScores = 3, kValues = 4 };

  uint32_t kind, done;
  uint64_t where;  // what the bytes are of
  uint64_t bytes;  // behind this, a multiple of 8

  uint8_t* data() { return reinterpret_cast<uint8_t*>(this + 1); }
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(this + 1); }
};

// Keeps the compiler from moving a write to memory across. The death of a process loses no write of its threads before the
// point where they were, so that order is all that is needed.
inline void in_order() { asm volatile("" ::: "memory"); }

class Entries {
 public:
  Entries(std::string path, Access access, size_t reserve) : file_(std::move(path), access, reserve) {}

  MappedFile& file() { return file_; }
  // They are from byte `start` of the file on; `end`, also in a file, is where the next one goes.
  void use(uint64_t start, uint64_t* end) { start_ = start, end_ = end; }
  void restart() { *end_ = start_; }
  void make_room(size_t bytes);  // beyond those there are
  // Several threads may add.
  Entry* add(Entry::Kind kind, uint64_t where, uint64_t bytes);
  static void finish(Entry* entry) {
    in_order();
    __atomic_store_n(&entry->done, 1u, __ATOMIC_RELEASE);
    in_order();
  }
  std::vector<Entry*> all();  // that are done
  bool any() const { return *end_ > start_; }

 private:
  std::mutex mutex_;
  MappedFile file_;
  uint64_t start_ = 0;
  uint64_t* end_ = nullptr;
};

}  // namespace hybridrec
