// Room for buckets in the file of an index: which parts of it are free is not written down, for the stripes tell.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "home.h"
#include "mapped_file.h"

namespace hybridrec {

class Buckets {
 public:
  static constexpr uint64_t kBytes = 64;  // of one

  explicit Buckets(MappedFile& file) : file_(file) {}

  void begin_anew(const Stripe* stripes, size_t count);  // what no stripe has is free
  uint64_t take(uint32_t count);                         // zeros
  void give(uint64_t at, uint32_t count, bool now);      // now, or when the change that gave it is done
  void settle();                                         // it is

 private:
  void release(uint64_t at, uint64_t bytes);

  std::mutex mutex_;
  MappedFile& file_;
  uint64_t end_ = kBytes;             // beyond is free; the first bucket is always empty
  std::map<uint64_t, uint64_t> free_;  // bytes by where they begin
  std::vector<std::pair<uint64_t, uint64_t>> given_;
};

}  // namespace hybridrec
