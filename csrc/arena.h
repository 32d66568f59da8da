// Recycled memory for batches. First-touching a fresh 100 MB block costs more than filling it, so a block that
// its last owner lets go of comes back to the pool and serves a later batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace hybridrec {

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Keeps at most `spare` free blocks; what comes back beyond that is returned to the system.
  explicit Arena(size_t spare) : spare_(spare) {}
  ~Arena();

  struct Block {
    std::shared_ptr<Arena> home;
    uint8_t* data;
    size_t capacity;
    ~Block() { home->give_back(data, capacity); }
  };

  std::unique_ptr<Block> take(size_t bytes);
  size_t free_bytes() const;

 private:
  struct Free {
    uint8_t* data;
    size_t capacity;
  };
  void give_back(uint8_t* data, size_t capacity);

  mutable std::mutex mutex_;
  std::vector<Free> free_;
  size_t spare_;
};

}  // namespace hybridrec
