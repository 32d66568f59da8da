#include "lookup.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <shared_mutex>
#include <stdexcept>

#include "hash_table.h"
#include "thread_pool.h"

namespace hybridrec {

namespace {

constexpr int64_t kIdsPerTask = 4096;
constexpr size_t kCached = size_t{16} << 20;  // an output beyond this is not found in the caches when it is read

// The first fault in order of feature and position, whichever thread found it.
class FirstFault {
 public:
  void note(const LookupFault& fault) {
    std::lock_guard lock(mutex_);
    if (!found_ || std::tie(fault.feature, fault.position) < std::tie(found_->feature, found_->position)) found_ = fault;
  }
  std::optional<LookupFault> found() const { return found_; }

 private:
  std::mutex mutex_;
  std::optional<LookupFault> found_;
};

}  // namespace

Combiner combiner_of(const std::string& name) {
  if (name == "sum") return Combiner::Sum;
  if (name == "mean") return Combiner::Mean;
  if (name == "sqrtn") return Combiner::Sqrtn;
  if (name == "max") return Combiner::Max;
  if (name == "none") return Combiner::None;
  throw std::invalid_argument("a combiner is sum, mean, sqrtn, max or none, not " + name);
}

TableSet::TableSet(std::vector<std::shared_ptr<Table>> tables, std::vector<Feature> features)
    : tables_(std::move(tables)), features_(std::move(features)) {
  int64_t sequences = 0;
  int maxima = 0;
  for (const Feature& f : features_) {
    const bool sequence = f.combiner == Combiner::None;
    at_.push_back(sequence ? sequences++ : width_);
    max_.push_back(f.combiner == Combiner::Max ? maxima++ : -1);
    if (!sequence) width_ += tables_[f.table]->rows.spec().dim;
  }
}

Bags TableSet::bags(const Block& block, const uint32_t* slots, int feature) const {
  const Pick& pick = block.picks[feature];
  const Feature& f = features_[feature];
  const float* weights = block.weights ? block.weights + pick.start : nullptr;
  const uint32_t* mine = slots + pick.start;
  if (f.combiner == Combiner::None)  // every id is a bag
    return {mine, pick.count, pick.count / f.group, nullptr, f.group, weights, Combiner::None, f.group};
  const int64_t* offsets = pick.line < 0 ? nullptr : block.offsets + pick.line * (block.batch + 1);
  return {mine, pick.count, block.batch, offsets, pick.hotness, weights, f.combiner, f.group};
}

std::pair<float*, int64_t> TableSet::part(const Outputs& out, int feature, int64_t batch) const {
  const int64_t dim = tables_[features_[feature].table]->rows.spec().dim;
  if (features_[feature].combiner == Combiner::None) return {out.sequences[at_[feature]], dim};
  if (out.stride < 0) return {out.flat ? out.flat + at_[feature] * batch : nullptr, dim};
  return {out.flat ? out.flat + at_[feature] : nullptr, out.stride};
}

int32_t* TableSet::winners(const Outputs& out, int feature) const {
  return max_[feature] < 0 ? nullptr : out.winners[max_[feature]];
}

std::vector<TableSet::Task> TableSet::by_bags(const Block& block) const {
  std::vector<Task> tasks;
  for (int f = 0; f < static_cast<int>(features_.size()); ++f) {
    const int64_t bags = this->bags(block, nullptr, f).bags, ids = block.picks[f].count;
    const int64_t step = std::max<int64_t>(64, bags * kIdsPerTask / std::max<int64_t>({ids, bags, 1}));
    for (int64_t first = 0; first < bags; first += step) tasks.push_back({f, first, std::min(first + step, bags)});
  }
  return tasks;
}

template <typename T>
std::vector<TableSet::Task> TableSet::by_ids(const Block& block) const {
  std::vector<Task> tasks;
  for (int f = 0; f < static_cast<int>(features_.size()); ++f)
    if (dynamic_cast<T*>(tables_[features_[f].table].get()))
      for (int64_t first = 0; first < block.picks[f].count; first += kIdsPerTask)
        tasks.push_back({f, first, std::min(first + kIdsPerTask, block.picks[f].count)});
  return tasks;
}

std::optional<LookupFault> TableSet::check_offsets(const Block& block) const {
  for (int f = 0; f < static_cast<int>(features_.size()); ++f) {
    const Pick& pick = block.picks[f];
    if (pick.line < 0) continue;
    const int64_t* offsets = block.offsets + pick.line * (block.batch + 1);
    bool good = offsets[0] == 0 && offsets[block.batch] == pick.count;
    for (int64_t b = 0; b < block.batch; ++b) good &= offsets[b] <= offsets[b + 1];
    if (good) continue;
    int64_t row = 0;
    while (row < block.batch && offsets[row] <= offsets[row + 1] && offsets[row] >= 0) ++row;
    return LookupFault{LookupFault::What::Offsets, f, row, offsets[row]};
  }
  return std::nullopt;
}

template <typename Lock>
std::vector<Lock> TableSet::locked() const {
  std::vector<Lock> locks;
  for (const auto& table : tables_) locks.emplace_back(table->lock());
  return locks;
}

std::vector<uint64_t> TableSet::removals() const {
  std::vector<uint64_t> found;
  for (const auto& table : tables_) {
    const auto* hash = dynamic_cast<const HashTable*>(table.get());
    found.push_back(hash ? hash->removals() : 0);
  }
  return found;
}

std::vector<uint64_t> TableSet::ages() const {
  std::vector<uint64_t> found = removals();
  for (size_t t = 0; t < tables_.size(); ++t)
    if (const auto* hash = dynamic_cast<const HashTable*>(tables_[t].get())) found[t] += hash->clock();
  return found;
}

std::optional<LookupFault> TableSet::lookup(const Block& block, bool train, uint32_t* slots, const Outputs& out,
                                            uint64_t* removals) const {
  if (auto fault = check_offsets(block)) return fault;
  auto reading = locked<std::shared_lock<std::shared_mutex>>();
  if (auto fault = resolve(block, slots)) return fault;  // before any table counts or admits an id
  std::vector<std::unique_lock<std::shared_mutex>> alone;  // until the rows are read, lest others make them go
  if (find(block, train, slots) > 0 && train) {
    const auto found_at = ages();
    reading.clear();
    alone = locked<std::unique_lock<std::shared_mutex>>();
    if (auto fault = admit(block, slots, found_at)) return fault;
  }
  if (removals) {
    const auto now = this->removals();
    std::copy(now.begin(), now.end(), removals);
  }
  pool(block, slots, out);
  return std::nullopt;
}

void TableSet::pool(const Block& block, const uint32_t* slots, const Outputs& out) const {
  const auto tasks = by_bags(block);
  const bool stream = static_cast<size_t>(block.batch * width_) * 4 > kCached;
  ThreadPool::instance().run(static_cast<int64_t>(tasks.size()), [&](int64_t number, int) {
    const Task& task = tasks[number];
    const Rows& rows = tables_[features_[task.feature].table]->rows;
    const Bags bags = this->bags(block, slots, task.feature);
    const auto [to, stride] = part(out, task.feature, block.batch);
    const bool lines = rows.spec().dim % 16 == 0 && stride % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0;
    kernels().pool({rows.spec(), rows.column(), bags, to, stride, winners(out, task.feature), stream && lines}, task.first,
                   task.last);
  }, block.small());
}

std::optional<LookupFault> TableSet::resolve(const Block& block, uint32_t* slots) const {
  FirstFault first;
  const auto tasks = by_ids<DenseTable>(block);
  ThreadPool::instance().run(static_cast<int64_t>(tasks.size()), [&](int64_t number, int) {
    const Task& task = tasks[number];
    const int64_t at = block.picks[task.feature].start + task.first;
    const auto& table = static_cast<const DenseTable&>(*tables_[features_[task.feature].table]);
    const int64_t bad = table.resolve({block.values + at, slots + at, task.last - task.first});
    if (bad >= 0) first.note({LookupFault::What::Range, task.feature, task.first + bad, block.values[at + bad]});
  }, block.small());
  return first.found();
}

int64_t TableSet::find(const Block& block, bool train, uint32_t* slots) const {
  const auto tasks = by_ids<HashTable>(block);
  std::atomic<int64_t> absent{0};
  ThreadPool::instance().run(static_cast<int64_t>(tasks.size()), [&](int64_t number, int) {
    const Task& task = tasks[number];
    const int64_t at = block.picks[task.feature].start + task.first;
    auto& table = static_cast<HashTable&>(*tables_[features_[task.feature].table]);
    absent += table.find({block.values + at, slots + at, task.last - task.first}, train);
  }, block.small());
  return absent;
}

std::optional<LookupFault> TableSet::admit(const Block& block, uint32_t* slots,
                                           const std::vector<uint64_t>& found_at) const {
  std::vector<std::vector<IdSpan>> spans(tables_.size());
  for (int f = 0; f < static_cast<int>(features_.size()); ++f) {
    const Pick& pick = block.picks[f];
    spans[features_[f].table].push_back({block.values + pick.start, slots + pick.start, pick.count});
  }
  std::vector<int> dynamic;
  for (int t = 0; t < static_cast<int>(tables_.size()); ++t)
    if (dynamic_cast<HashTable*>(tables_[t].get())) dynamic.push_back(t);
  std::vector<Born> born(dynamic.size());
  std::vector<char> full(dynamic.size(), 0);
  std::vector<Change> changes;
  for (const int t : dynamic) changes.emplace_back(*tables_[t]);
  FirstFault first;
  ThreadPool::instance().run(static_cast<int64_t>(dynamic.size()), [&](int64_t i, int) {
    const int t = dynamic[i];
    auto& table = static_cast<HashTable&>(*tables_[t]);
    if (table.removals() + table.clock() != found_at[t])  // another thread had the lock meanwhile
      for (const IdSpan& span : spans[t]) table.find_again(span);
    try {
      born[i] = table.admit(spans[t]);
    } catch (const std::length_error& error) {
      first.note({LookupFault::What::Capacity, t, 0, 0, error.what()});
      full[i] = 1;
    }
  });
  for (size_t i = 0; i < dynamic.size(); ++i) {
    if (full[i]) continue;
    tables_[dynamic[i]]->fill(born[i]);
    changes[i].done();
  }
  return first.found();
}

void TableSet::weight_gradient(const Block& block, const uint32_t* slots, const Outputs& out, const Outputs& grad,
                               float* result) const {
  const auto tasks = by_bags(block);
  ThreadPool::instance().run(static_cast<int64_t>(tasks.size()), [&](int64_t number, int) {
    const Task& task = tasks[number];
    const auto [g, stride] = part(grad, task.feature, block.batch);
    if (g == nullptr) return;
    const auto& rows = tables_[features_[task.feature].table]->rows;
    const auto [from, from_stride] = part(out, task.feature, block.batch);
    const Pool pool{rows.spec(), rows.column(), bags(block, slots, task.feature), from, from_stride,
                    winners(out, task.feature), false};
    kernels().weight_gradient(pool, g, stride, task.first, task.last, result + block.picks[task.feature].start);
  });
}

void TableSet::sum_gradients(const Block& block, const uint32_t* slots, const Outputs& grad, float factor,
                             const std::vector<std::vector<int>>& groups) const {
  for (const auto& table : tables_) {
    const size_t rows = table->rows.size();
    if (rows) std::memset(table->rows.column().at(0), 0, rows * table->rows.row_bytes());
  }
  ThreadPool::instance().run(static_cast<int64_t>(groups.size()), [&](int64_t number, int) {
    for (const int feature : groups[number]) {
      const auto [g, stride] = part(grad, feature, block.batch);
      if (g == nullptr) continue;
      const auto& rows = tables_[features_[feature].table]->rows;
      const Bags mine = bags(block, slots, feature);
      const Pool pool{rows.spec(), rows.column(), mine, nullptr, 0, winners(grad, feature), false};
      kernels().add_gradient(pool, g, stride, factor, 0, mine.bags);
    }
  });
}

}  // namespace hybridrec
