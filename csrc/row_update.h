// The step of a row optimizer: every pending gradient of every table, summed by row and applied, in one call.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "by_slot.h"
#include "lookup.h"
#include "thread_pool.h"

namespace hybridrec {

// The gradients of one backward call. What it points to stays until the step.
struct Pending {
  std::shared_ptr<const TableSet> set;  // whose features the block has; of the tables of the update
  Block block;
  uint32_t* slots;
  Outputs grad;  // flat and sequences: gradients, null where there is none; winners as in the forward call
  std::vector<uint64_t> removals;  // of the tables, when the slots were found: none since, and they still hold
  std::vector<bool> wanted;        // per table: whether its gradients are still to be applied
};

struct StepResult {
  int64_t updated = 0, not_finite = 0;
  double squares = 0;  // of the summed gradients, where the norm alone was asked for
};

class RowUpdate {
 public:
  explicit RowUpdate(std::vector<std::shared_ptr<Table>> tables) : tables_(std::move(tables)) {}

  // Tables without a step are left alone. norm_only: no row changes, only `squares` and `not_finite` count.
  std::vector<StepResult> apply(std::vector<Pending>& pending, const std::vector<std::optional<RowStep>>& steps,
                                bool norm_only);
  // Whether every pending gradient of these tables is finite.
  bool finite(const std::vector<Pending>& pending, const std::vector<bool>& tables) const;

 private:
  struct Job;
  std::unique_ptr<Job> job(int table, std::vector<Pending>& pending, const RowStep& step, bool norm_only);
  void run_whole(Job& job, int worker);
  void run_split(const std::vector<Job*>& jobs);

  // A worker's own memory.
  struct Scratch {
    SlotSorter sorter;
    std::vector<float> row;
  };
  std::vector<std::shared_ptr<Table>> tables_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> scratch_ = std::vector<std::unique_ptr<Scratch>>(ThreadPool::kMostThreads);
  Scratch& scratch(int worker) {
    if (!scratch_[worker]) scratch_[worker] = std::make_unique<Scratch>();
    return *scratch_[worker];
  }
  std::vector<uint64_t> items_;
};

Rule rule_of(const std::string& name);

}  // namespace hybridrec
