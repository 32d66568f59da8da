// Recycled memory for batches. First-touching a fresh 100 MB block costs more than filling it, so a block that
// its last owner lets go of comes back to the pool and serves a later batch. The pool never holds more blocks than
// were in use at once, and lets go of the oldest free one where a new size is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace hybridrec {

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  ~Arena();

  struct Block {
    std::shared_ptr<Arena> home;
    uint8_t* data;
    size_t capacity;
    ~Block() { home->give_back(data, capacity); }
  };

  std::unique_ptr<Block> take(size_t bytes);

 private:
  struct Free {
    uint8_t* data;
    size_t capacity;
  };
  void give_back(uint8_t* data, size_t capacity);
  void drop_oldest();

  std::mutex mutex_;
  std::vector<Free> free_;  // oldest first
};

}  // namespace hybridrec
