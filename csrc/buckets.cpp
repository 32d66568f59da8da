#include "buckets.h"

#include <algorithm>
#include <cstring>

namespace hybridrec {

void Buckets::begin_anew(const Stripe* stripes, size_t count) {
  std::vector<std::pair<uint64_t, uint64_t>> used;
  for (size_t s = 0; s < count; ++s)
    if (stripes[s].at != 0) used.emplace_back(stripes[s].at, stripes[s].count * kBytes);
  std::sort(used.begin(), used.end());
  free_.clear(), given_.clear();
  end_ = kBytes;
  for (const auto& [at, bytes] : used) {
    if (at > end_) free_[end_] = at - end_;
    end_ = at + bytes;
  }
}

uint64_t Buckets::take(uint32_t count) {
  const uint64_t bytes = count * kBytes;
  std::lock_guard lock(mutex_);
  auto best = free_.end();  // the smallest that is large enough
  for (auto part = free_.begin(); part != free_.end(); ++part)
    if (part->second >= bytes && (best == free_.end() || part->second < best->second)) best = part;
  uint64_t at = end_;
  if (best != free_.end()) {
    at = best->first;
    const uint64_t left = best->second - bytes;
    free_.erase(best);
    if (left > 0) free_[at + bytes] = left;
  } else {
    file_.grow(end_ + bytes);
    end_ += bytes;
  }
  std::memset(file_.data() + at, 0, bytes);
  return at;
}

void Buckets::give(uint64_t at, uint32_t count, bool now) {
  std::lock_guard lock(mutex_);
  if (now) release(at, count * kBytes);
  else given_.emplace_back(at, count * kBytes);
}

void Buckets::settle() {
  for (const auto& [at, bytes] : given_) release(at, bytes);
  given_.clear();
}

void Buckets::release(uint64_t at, uint64_t bytes) {
  auto after = free_.lower_bound(at);
  if (after != free_.end() && after->first == at + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == at) {
      at = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (at + bytes == end_) end_ = at;
  else free_[at] = bytes;
}

}  // namespace hybridrec
