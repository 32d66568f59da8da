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

// The rows of a table that have gradients, by slot, and what their columns add up to: those that are here, as measured;
// once others have added theirs, all `dim` of them.
struct WholeRows {
  int64_t dim = 0;
  std::vector<uint32_t> slots;
  std::vector<RowSums> sums;

  void add(const WholeRows& others);
  void sort();  // by slot
  // The sums of some of the rows, whose slots ascend; `room` is memory for them.
  const RowSums* of(const uint32_t* some, int64_t n, std::vector<RowSums>& room) const;
};

class RowUpdate {
 public:
  explicit RowUpdate(std::vector<std::shared_ptr<Table>> tables) : tables_(std::move(tables)) {}

  using Steps = std::vector<std::optional<RowStep>>;            // one per table; those without one are left alone
  using Wholes = std::vector<std::shared_ptr<WholeRows>>;      // one per table; null where all columns are here
  using Tags = std::vector<std::optional<Tag>>;                // one per table, or none; a table on disk keeps it

  // norm_only: no row changes, only `squares` and `not_finite` count. Rows of which other columns are elsewhere take their
  // step by `wholes`.
  std::vector<StepResult> apply(std::vector<Pending>& pending, const Steps& steps, bool norm_only, const Wholes& wholes,
                                const Tags& tags = {});
  // What the columns here add up to in every row that has gradients; `dims` are the columns of whole tables.
  Wholes measure(std::vector<Pending>& pending, const Steps& steps, const std::vector<int64_t>& dims);
  // Whether every pending gradient of these tables is finite.
  bool finite(const std::vector<Pending>& pending, const std::vector<bool>& tables) const;

 private:
  enum class Pass { Update, Norm, Measure };
  struct Outcome;
  struct Job;
  std::vector<std::unique_ptr<Job>> run(std::vector<Pending>& pending, const Steps& steps, Pass pass, const Wholes& wholes,
                                        const Tags& tags);
  std::vector<std::optional<Change>> changes(const std::vector<Pending>& pending, const Steps& steps) const;
  std::unique_ptr<Job> job(int table, std::vector<Pending>& pending, const RowStep& step, Pass pass);
  void run_whole(Job& job, int worker);
  void run_split(const std::vector<Job*>& jobs);

  // A worker's own memory.
  struct Scratch {
    SlotSorter sorter;
    std::vector<float> row;
    std::vector<RowSums> sums;
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
