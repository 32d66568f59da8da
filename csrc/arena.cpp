#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace hybridrec {

#if defined(__SANITIZE_ADDRESS__)

namespace {

// Blocks of the exact size from malloc, so that the checker sees a write beyond the end.
size_t capacity_for(size_t bytes) { return std::max<size_t>(bytes, 1); }

}  // namespace

Memory plain_memory(size_t capacity) {
  if (void* data = std::malloc(capacity)) return {{static_cast<uint8_t*>(data), std::free}, capacity};
  throw std::bad_alloc();
}

#else

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Ragged batches differ in size by a few per cent: an eighth of headroom lets one block serve them all.
size_t capacity_for(size_t bytes) {
  const size_t wanted = bytes + bytes / 8;
  const size_t unit = wanted < kHugePage ? 4096 : kHugePage;
  return std::max<size_t>((wanted + unit - 1) / unit * unit, 4096);
}

}  // namespace

Memory plain_memory(size_t capacity) {
  void* data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (capacity >= kHugePage) madvise(data, capacity, MADV_HUGEPAGE);
#endif
  return {{static_cast<uint8_t*>(data), [capacity](uint8_t* old) { munmap(old, capacity); }}, capacity};
}

#endif

std::unique_ptr<Arena::Block> Arena::take(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto best = free_.end();  // the tightest block that fits, and not one eight times too large
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->capacity >= bytes && it->capacity / 8 <= bytes + 4096 &&
          (best == free_.end() || it->capacity < best->capacity))
        best = it;
    if (best != free_.end()) {
      Memory memory = std::move(*best);
      free_.erase(best);
      return std::unique_ptr<Block>(new Block{shared_from_this(), std::move(memory)});
    }
  }
  drop_oldest();  // nothing fits: sizes have changed, and so the pool does
  return std::unique_ptr<Block>(new Block{shared_from_this(), make_(capacity_for(bytes))});
}

void Arena::drop_oldest() {
  Memory oldest;  // freed after the lock, which nobody should wait for
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return;
  oldest = std::move(free_.front());
  free_.erase(free_.begin());
}

void Arena::give_back(Memory memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(memory));
}

}  // namespace hybridrec
