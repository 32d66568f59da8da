#include "vocabulary.h"

#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace hybridrec {

namespace {

int64_t checked(int64_t max_tokens) {
  if (max_tokens < 1 || max_tokens > 0xFFFFFFFELL)
    throw std::invalid_argument("a vocabulary has 1 to 2^32 - 2 tokens, not " + std::to_string(max_tokens));
  return max_tokens;
}

}  // namespace

Vocabulary::Vocabulary(int64_t max_tokens)
    : max_tokens_(checked(max_tokens)), index_(static_cast<uint64_t>(max_tokens)), counts_(1, 0) {}

void Vocabulary::find(const int64_t* ids, int64_t n, int64_t* out) const {
  const auto found = [out](int64_t i, uint32_t slot) { out[i] = slot == kMissing ? 0 : int64_t{slot} + 1; };
  index_.find(ids, n, Keys{keys_}, found);
}

int64_t Vocabulary::learn(int64_t id) {
  const uint32_t slot = index_.find(id, Keys{keys_});
  if (slot != kMissing) return int64_t{slot} + 1;
  if (static_cast<int64_t>(keys_.size()) == max_tokens_) return 0;
  keys_.push_back(id);
  counts_.push_back(0);
  index_.insert(id, static_cast<uint32_t>(keys_.size() - 1), Keys{keys_});
  return static_cast<int64_t>(keys_.size());
}

void Vocabulary::lookup(const int64_t* ids, int64_t n, int64_t* out, bool learn) {
  if (!learn) {
    std::shared_lock<std::shared_mutex> shared(lock_);
    return find(ids, n, out);
  }
  std::unique_lock<std::shared_mutex> alone(lock_);
  find(ids, n, out);
  for (int64_t i = 0; i < n; ++i) {
    if (out[i] == 0) out[i] = this->learn(ids[i]);
    ++counts_[out[i]];
  }
}

int64_t Vocabulary::size() const {
  std::shared_lock<std::shared_mutex> shared(lock_);
  return static_cast<int64_t>(keys_.size());
}

std::vector<int64_t> Vocabulary::keys() const {
  std::shared_lock<std::shared_mutex> shared(lock_);
  return keys_;
}

std::vector<int64_t> Vocabulary::counts() const {
  std::shared_lock<std::shared_mutex> shared(lock_);
  return counts_;
}

void Vocabulary::load(const int64_t* keys, int64_t size, const int64_t* counts) {
  if (size > max_tokens_)
    throw std::invalid_argument(std::to_string(size) + " tokens do not fit a vocabulary of " +
                                std::to_string(max_tokens_) + "; raise max_tokens");
  Vocabulary loaded(max_tokens_);
  for (int64_t i = 0; i < size; ++i)
    if (loaded.learn(keys[i]) != i + 1)
      throw std::invalid_argument("token " + std::to_string(keys[i]) + " is there twice; a vocabulary has it once");
  loaded.counts_.assign(counts, counts + size + 1);
  std::unique_lock<std::shared_mutex> alone(lock_);
  index_ = std::move(loaded.index_);
  keys_ = std::move(loaded.keys_);
  counts_ = std::move(loaded.counts_);
}

}  // namespace hybridrec
