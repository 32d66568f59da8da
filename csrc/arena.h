// Recycled memory for batches. First-touching a fresh 100 MB block costs more than filling it, so a block that
// its last owner lets go of comes back to the pool and serves a later batch. The pool never holds more blocks than
// were in use at once, and lets go of the oldest free one where a new size is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace hybridrec {

// Bytes, and whoever frees them with its last copy.
struct Memory {
  std::shared_ptr<uint8_t> data;
  size_t capacity;
};

Memory plain_memory(size_t capacity);

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Where blocks come from: `make(capacity)`, called by any thread, as often as a block is missing.
  using Make = std::function<Memory(size_t)>;
  explicit Arena(Make make = plain_memory) : make_(std::move(make)) {}

  struct Block {
    std::shared_ptr<Arena> home;
    Memory memory;
    uint8_t* data() const { return memory.data.get(); }
    ~Block() { home->give_back(std::move(memory)); }
  };

  std::unique_ptr<Block> take(size_t bytes);

 private:
  void give_back(Memory memory);
  void drop_oldest();

  Make make_;
  std::mutex mutex_;
  std::vector<Memory> free_;  // oldest first
};

}  // namespace hybridrec
