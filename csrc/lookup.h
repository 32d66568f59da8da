// Tables that are looked up and updated together: one call does the work of all features, on all threads.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "table.h"

namespace hybridrec {

struct Feature {
  int table;
  Combiner combiner;
  int group;  // slots per id: more than 1 under multi-hash
};

// Where a feature's ids are in a block: ids [start, start + count), `hotness` per row or offsets line `line`.
struct Pick {
  int64_t start, count, hotness, line;
};

// The ids of one batch, as hybridrec.types.IdBlock has them.
struct Block {
  const int64_t* values;
  const int64_t* offsets;  // [lines, batch + 1]
  const float* weights;    // [values], or null
  int64_t batch;
  std::vector<Pick> picks;  // one per feature of the set

  bool small() const {  // too few ids to share among threads
    int64_t ids = 0;
    for (const Pick& pick : picks) ids += pick.count;
    return ids < 4096;
  }
};

// Where pooled features, sequences and winners go; also where their gradients come from.
struct Outputs {
  float* flat;     // [batch, stride]: pooled features side by side; null where there is no gradient
  int64_t stride;  // -1: they come one after another instead, each [batch, dim]
  std::vector<float*> sequences;   // one per feature with combiner None, in order: [ids, dim]
  std::vector<int32_t*> winners;   // one per feature with combiner Max, in order: [batch, dim]
};

// Bad input: what it is about, in which feature and at which of its positions. A table that is too small has its own
// words, and its number in place of the feature's.
struct LookupFault {
  enum class What { Range, Offsets, Capacity } what;
  int feature;
  int64_t position = 0, value = 0;
  std::string message = {};
};

class TableSet {
 public:
  TableSet(std::vector<std::shared_ptr<Table>> tables, std::vector<Feature> features);

  const std::vector<std::shared_ptr<Table>>& tables() const { return tables_; }
  const std::vector<Feature>& features() const { return features_; }
  int64_t width() const { return width_; }  // columns of the flat output

  // Slots of all ids, then every output. Training lookups admit new ids into dynamic tables. `removals`, unless null,
  // gets one number per table: how many rows had gone when the slots were found.
  std::optional<LookupFault> lookup(const Block& block, bool train, uint32_t* slots, const Outputs& out,
                                    uint64_t* removals) const;
  std::vector<uint64_t> removals() const;  // so far; a fixed table has none

  // Gradient of the weights, [values]; positions of other features stay as they are.
  void weight_gradient(const Block& block, const uint32_t* slots, const Outputs& out, const Outputs& grad, float* result) const;

  // Rows, which are floats, become `factor` times their gradients, summed over all bags. Features of one group may have
  // rows in common; it is one thread's.
  void sum_gradients(const Block& block, const uint32_t* slots, const Outputs& grad, float factor,
                     const std::vector<std::vector<int>>& groups) const;

  Bags bags(const Block& block, const uint32_t* slots, int feature) const;
  // Feature f's part of an output of so many rows: its address and the floats between them. Null if it is not there.
  std::pair<float*, int64_t> part(const Outputs& out, int feature, int64_t batch) const;
  int32_t* winners(const Outputs& out, int feature) const;

 private:
  struct Task {
    int feature;
    int64_t first, last;
  };
  std::vector<Task> by_bags(const Block& block) const;
  template <typename T>
  std::vector<Task> by_ids(const Block& block) const;  // features whose table is a T
  template <typename Lock>
  std::vector<Lock> locked() const;  // all tables
  std::optional<LookupFault> check_offsets(const Block& block) const;
  std::optional<LookupFault> resolve(const Block& block, uint32_t* slots) const;
  std::optional<LookupFault> admit(const Block& block, uint32_t* slots, const std::vector<uint64_t>& found_at) const;
  void pool(const Block& block, const uint32_t* slots, const Outputs& out) const;
  std::vector<uint64_t> ages() const;  // per table: more after every removal and every step
  int64_t find(const Block& block, bool train, uint32_t* slots) const;  // returns the number of absent ids

  std::vector<std::shared_ptr<Table>> tables_;
  std::vector<Feature> features_;
  std::vector<int64_t> at_;  // column in the flat output, or number of the sequence
  std::vector<int> max_;     // number among the features with combiner Max, or -1
  int64_t width_ = 0;
};

Combiner combiner_of(const std::string& name);

}  // namespace hybridrec
