// Ids of a batch on their way to the ranks that hold their rows: each id of a table travels once, to its owner, and every
// place where it stood remembers where its row will be in what comes back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "marked_rows.h"
#include "table.h"

namespace hybridrec {

// A table as those see it who ask for its rows.
struct Target {
  int64_t rows;  // of a fixed table; -1: any id has one
  OutOfRange policy;
  std::vector<int> holders;  // ranks: the row of id i is with holder i % n, those of a dynamic table go by a hash
  bool every = false;        // each occurrence of an id travels, since the table counts them
  bool served = false;       // the holders are servers, among which ids go by `server_of`, as they are
};

// The ids of one feature: values [start, start + count) of the block.
struct Asked {
  int target;
  int64_t start, count;
};

// Which of `count` shares has the row of an id of a dynamic table.
int64_t owner_of(int64_t id, int64_t count);

// Which of `count` servers has the row of an id: the one that draws the largest hash for it, the first of equals. One more
// server takes its part of the ids from the others, and no other id moves.
int64_t server_of(int64_t id, int64_t count);

// The distinct ids of a batch by target and rank.
class Routed {
 public:
  struct Fault {
    int feature;  // among those asked
    int64_t position, value;
  };

  // Several threads share the targets. After a fault there is nothing else to ask for. The values stay where they are
  // until `fill` has seen them.
  Routed(const std::vector<Target>& targets, const std::vector<Asked>& asked, const int64_t* values, int world);

  bool failed() const { return fault_.feature >= 0; }
  const Fault& fault() const { return fault_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // [targets, world] ids

  // Writes the ids of target t for rank r to `messages[t * world + r]`, as the holder numbers its rows (dynamic and served:
  // as they are), and for each value of feature f, from positions[f] on, where its row will be: bases[t * world + r] + its place
  // in that message, or -1 for an id that has none.
  void fill(const std::vector<int64_t*>& messages, const std::vector<int64_t>& bases,
            const std::vector<int64_t*>& positions) const;

 private:
  struct Ids {
    std::vector<int64_t> unique;  // as the holder numbers them, in order of first appearance
    std::vector<uint32_t> share;  // which of the holders
    std::vector<int64_t> place;   // among those of the same holder
    std::optional<MarkedRows> marked;  // leads from an id to its rank; where it does not suit, `number_` has numbers
    std::vector<uint32_t> rank;
  };
  void assign(size_t target, const int64_t* values);
  bool settle(size_t feature, const int64_t* values);
  void mark(size_t target, int64_t most);
  void number(size_t target, int64_t most);
  void deal(size_t target);
  void place(size_t feature, const std::vector<int64_t>& where, int64_t* out) const;
  template <typename Do>
  void each_feature(size_t target, const Do& act) const;  // act(feature) for those that ask for it

  const std::vector<Target> targets_;
  const std::vector<Asked> asked_;
  const int world_;
  std::vector<Ids> ids_;
  std::vector<const int64_t*> values_;        // per feature: its ids
  std::vector<std::vector<int64_t>> hashed_;  // per feature: the same, where some were outside a table that takes them by hash
  std::vector<std::vector<int32_t>> number_;  // per feature: which distinct id stands there, -1 for none
  std::vector<int64_t> counts_;
  std::vector<Fault> faults_;  // per target
  Fault fault_{-1, 0, 0};
};

}  // namespace hybridrec
