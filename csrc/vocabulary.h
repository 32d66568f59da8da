// A vocabulary that is learned as it goes: the n-th distinct id it meets gets index n, counted from 1, and 0 stands for
// every id beyond its size. Any thread may call it at any time.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "hash_index.h"

namespace hybridrec {

class Vocabulary {
 public:
  explicit Vocabulary(int64_t max_tokens);  // ids with an index of their own; out-of-vocabulary is not one of them

  // out[i] is the index of ids[i], 0 if it has none. Where it learns, new ids get indices in order of position while
  // there are any left, and every occurrence is counted.
  void lookup(const int64_t* ids, int64_t n, int64_t* out, bool learn);

  int64_t max_tokens() const { return max_tokens_; }
  int64_t size() const;
  std::vector<int64_t> keys() const;    // keys()[i] has index i + 1
  std::vector<int64_t> counts() const;  // counts()[0] is out of vocabulary
  // keys() and counts() of a vocabulary, size() and size() + 1 of them: takes their place.
  void load(const int64_t* keys, int64_t size, const int64_t* counts);

 private:
  struct Keys {
    const std::vector<int64_t>& keys;
    int64_t operator()(uint32_t slot) const { return keys[slot]; }
    HYBRIDREC_INLINE void prefetch(uint32_t slot) const { __builtin_prefetch(&keys[slot]); }
  };

  void find(const int64_t* ids, int64_t n, int64_t* out) const;
  int64_t learn(int64_t id);

  mutable std::shared_mutex lock_;
  int64_t max_tokens_;
  HashIndex index_;
  std::vector<int64_t> keys_, counts_;
};

}  // namespace hybridrec
