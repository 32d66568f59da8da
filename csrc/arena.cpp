#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace hybridrec {
namespace {

#if defined(__SANITIZE_ADDRESS__)

// Blocks of the exact size from malloc, so that the checker sees a write beyond the end.
size_t capacity_for(size_t bytes) { return std::max<size_t>(bytes, 1); }

uint8_t* map(size_t capacity) {
  if (void* data = std::malloc(capacity)) return static_cast<uint8_t*>(data);
  throw std::bad_alloc();
}

void unmap(uint8_t* data, size_t) { std::free(data); }

#else

constexpr size_t kHugePage = size_t{2} << 20;

// Ragged batches differ in size by a few per cent: an eighth of headroom lets one block serve them all.
size_t capacity_for(size_t bytes) {
  const size_t wanted = bytes + bytes / 8;
  const size_t unit = wanted < kHugePage ? 4096 : kHugePage;
  return std::max<size_t>((wanted + unit - 1) / unit * unit, 4096);
}

uint8_t* map(size_t capacity) {
  void* data = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (capacity >= kHugePage) madvise(data, capacity, MADV_HUGEPAGE);
#endif
  return static_cast<uint8_t*>(data);
}

void unmap(uint8_t* data, size_t capacity) { munmap(data, capacity); }

#endif

}  // namespace

Arena::~Arena() {
  for (const Free& block : free_) unmap(block.data, block.capacity);
}

std::unique_ptr<Arena::Block> Arena::take(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto best = free_.end();  // the tightest block that fits, and not one eight times too large
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->capacity >= bytes && it->capacity / 8 <= bytes + 4096 &&
          (best == free_.end() || it->capacity < best->capacity))
        best = it;
    if (best != free_.end()) {
      Free block = *best;
      free_.erase(best);
      return std::unique_ptr<Block>(new Block{shared_from_this(), block.data, block.capacity});
    }
  }
  drop_oldest();  // nothing fits: sizes have changed, and so the pool does
  const size_t capacity = capacity_for(bytes);
  return std::unique_ptr<Block>(new Block{shared_from_this(), map(capacity), capacity});
}

void Arena::drop_oldest() {
  Free oldest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return;
    oldest = free_.front();
    free_.erase(free_.begin());
  }
  unmap(oldest.data, oldest.capacity);
}

void Arena::give_back(uint8_t* data, size_t capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back({data, capacity});
}

}  // namespace hybridrec
