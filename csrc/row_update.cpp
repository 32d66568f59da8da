#include "row_update.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <shared_mutex>
#include <stdexcept>
#include <utility>

#include "half.h"
#include "hash_table.h"
#include "thread_pool.h"

namespace hybridrec {

namespace {

constexpr int64_t kWhole = 256 << 10;  // a table with fewer occurrences is one task
constexpr int64_t kPart = 32 << 10;    // occurrences that a part of a larger one should have
constexpr int64_t kChunk = 64 << 10;
constexpr int64_t kKept = 256;  // rows that are kept and then updated while they are in the caches

// Ids of one feature in one backward call, as occurrences.
struct Part {
  Bags bags;
  bool by_id;  // an occurrence is an id, not a bag

  int64_t occurrences() const { return by_id ? bags.ids : bags.bags; }
};

int64_t id_in(const void* table, uint32_t slot) { return static_cast<const HashTable*>(table)->id_of(slot); }

}  // namespace

Rule rule_of(const std::string& name) {
  if (name == "sgd") return Rule::Sgd;
  if (name == "momentum") return Rule::Momentum;
  if (name == "nesterov") return Rule::Nesterov;
  if (name == "adagrad") return Rule::Adagrad;
  if (name == "rowwise_adagrad") return Rule::RowWiseAdagrad;
  if (name == "adam") return Rule::Adam;
  if (name == "ftrl") return Rule::Ftrl;
  throw std::invalid_argument("no row optimizer is called " + name);
}

void WholeRows::add(const WholeRows& others) {
  slots.insert(slots.end(), others.slots.begin(), others.slots.end());
  sums.insert(sums.end(), others.sums.begin(), others.sums.end());
}

void WholeRows::sort() {
  std::vector<std::pair<uint32_t, RowSums>> rows;
  for (size_t i = 0; i < slots.size(); ++i) rows.emplace_back(slots[i], sums[i]);
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < rows.size(); ++i) slots[i] = rows[i].first, sums[i] = rows[i].second;
}

const RowSums* WholeRows::of(const uint32_t* some, int64_t n, std::vector<RowSums>& room) const {
  if (n == static_cast<int64_t>(slots.size())) return sums.data();
  room.clear();
  auto from = slots.begin();
  for (int64_t i = 0; i < n; ++i) {
    from = std::lower_bound(from, slots.end(), some[i]);
    if (from == slots.end() || *from != some[i]) throw std::logic_error("a row has gradients that were not measured");
    room.push_back(sums[from - slots.begin()]);
  }
  return room.data();
}

// What comes of some rows of a table.
struct RowUpdate::Outcome {
  StepResult result;
  ExactSum norm;
  WholeRows measured;

  void add(const Outcome& other) {
    result.updated += other.result.updated;
    result.not_finite += other.result.not_finite;
    norm.add(other.norm);
    measured.add(other.measured);
  }
};

// One table's share of a step.
struct RowUpdate::Job {
  int table;
  Update update;
  std::vector<Part> parts;
  std::vector<Source> sources;
  std::vector<std::vector<float>> shares;
  std::vector<std::vector<uint32_t>> bag_of;
  std::vector<std::vector<int32_t>> places;
  int64_t ids = 0;
  int bits;  // of a slot
  int low;   // of source << shift | occurrence
  Outcome outcome;
  Pass pass;
  const WholeRows* whole = nullptr;

  void add(const Part& part, const float* grad, int64_t stride, const int32_t* winners);
  void spread(size_t s, const int32_t* winners);

  // f(slot, source << shift | occurrence) for occurrences [first, last) of the ids of part s.
  template <typename F>
  void emit_ids(size_t s, int64_t first, int64_t last, const F& f) const {
    if (first >= last) return;
    const Part& part = parts[s];
    const uint32_t base = static_cast<uint32_t>(s << update.shift);
    const uint32_t* slots = part.bags.slots;
    if (part.by_id || (part.bags.offsets == nullptr && part.bags.hotness == 1)) {
      for (int64_t i = first; i < last; ++i)
        if (slots[i] != kMissing) f(slots[i], base | static_cast<uint32_t>(i));
      return;
    }
    int64_t bag = part.bags.offsets
                      ? std::upper_bound(part.bags.offsets, part.bags.offsets + part.bags.bags + 1, first) - part.bags.offsets - 1
                      : first / part.bags.hotness;
    for (int64_t i = first; i < last; ++bag) {
      const int64_t stop = std::min(last, part.bags.start(bag + 1));
      for (; i < stop; ++i)
        if (slots[i] != kMissing) f(slots[i], base | static_cast<uint32_t>(bag));
    }
  }

  // A table on disk keeps its rows before they change.
  void run(Table& home, const BySlot& rows, Scratch& scratch, Outcome& out) const {
    if (pass != Pass::Update || !home.home) return run_rows(home, rows, scratch, out);
    for (int64_t first = 0; first < rows.rows; first += kKept) {
      BySlot part = rows;
      part.slots += first, part.starts += first;
      part.rows = std::min(kKept, rows.rows - first);
      Outcome mine;
      run_rows(home, part, scratch, mine);
      out.add(mine);
    }
  }

  void run_rows(Table& home, const BySlot& rows, Scratch& scratch, Outcome& out) const {
    if (pass == Pass::Update) home.changing_values(rows.slots, rows.rows);
    scratch.row.resize(std::max<size_t>(scratch.row.size(), 2 * update.spec.dim + 32));
    Update mine = update;
    mine.row_count = rows.rows;
    mine.slots = rows.slots;
    mine.starts = rows.starts;
    mine.what = rows.what;
    mine.count = rows.count;
    mine.mask = rows.mask;
    mine.scratch = scratch.row.data();
    mine.norm = pass == Pass::Norm ? &out.norm : nullptr;
    if (whole) mine.whole = whole->of(rows.slots, rows.rows, scratch.sums), mine.whole_dim = whole->dim;
    if (pass == Pass::Measure) {
      out.measured.slots.assign(rows.slots, rows.slots + rows.rows);
      out.measured.sums.resize(rows.rows);
      mine.measured = out.measured.sums.data();
    }
    kernels().update(mine);
    out.result = {mine.updated, mine.not_finite};
  }
};

void RowUpdate::Job::add(const Part& part, const float* grad, int64_t stride, const int32_t* winners) {
  parts.push_back(part);
  sources.push_back({grad, stride, nullptr, nullptr, nullptr, nullptr});
  shares.emplace_back();
  bag_of.emplace_back();
  places.emplace_back();
  ids += part.bags.ids;
  spread(parts.size() - 1, winners);
}

// Bags and shares of the occurrences of part s, where they are not simply the bag and 1.
void RowUpdate::Job::spread(size_t s, const int32_t* winners) {
  const Part& part = parts[s];
  const Bags& bags = part.bags;
  Source& source = sources[s];
  const bool one_each = bags.offsets == nullptr && bags.hotness == 1;
  if (part.by_id && !one_each) {
    bag_of[s].resize(bags.ids);
    for (int64_t bag = 0; bag < bags.bags; ++bag)
      for (int64_t i = bags.start(bag); i < bags.start(bag + 1); ++i) bag_of[s][i] = static_cast<uint32_t>(bag);
    source.bag_of = bag_of[s].data();
  }
  const bool divides = bags.combiner == Combiner::Mean || bags.combiner == Combiner::Sqrtn;
  if (divides || bags.weights) {
    shares[s].resize(part.occurrences());
    for (int64_t bag = 0; bag < bags.bags; ++bag) {
      const int64_t start = bags.start(bag), stop = bags.start(bag + 1);
      const float scale = bag_scale(bags, start, stop);
      if (part.by_id)
        for (int64_t i = start; i < stop; ++i) shares[s][i] = bags.weights ? scale * bags.weights[i] : scale;
      else shares[s][bag] = scale;
    }
    source.share = shares[s].data();
  }
  if (winners) {
    places[s].resize(bags.ids);
    for (int64_t bag = 0; bag < bags.bags; ++bag)
      for (int64_t i = bags.start(bag); i < bags.start(bag + 1); ++i) places[s][i] = static_cast<int32_t>(i - bags.start(bag));
    source.winners = winners;
    source.place = places[s].data();
  }
}

std::unique_ptr<RowUpdate::Job> RowUpdate::job(int table, std::vector<Pending>& pending, const RowStep& step, Pass pass) {
  auto job = std::make_unique<Job>();
  const Table& home = *tables_[table];
  const Rows& rows = home.rows;
  job->table = table;
  job->bits = bit_width(std::max<uint64_t>(rows.size(), 1) - 1);
  for (Pending& call : pending)
    for (int f = 0; f < static_cast<int>(call.set->features().size()); ++f) {
      if (call.set->features()[f].table != table || !call.wanted[table]) continue;
      const auto [grad, stride] = call.set->part(call.grad, f, call.block.batch);
      if (grad == nullptr) continue;
      const Bags bags = call.set->bags(call.block, call.slots, f);
      const int32_t* winners = call.set->winners(call.grad, f);
      job->add({bags, bags.weights != nullptr || winners != nullptr}, grad, stride, winners);
    }
  int64_t most = 1;
  for (const Part& part : job->parts) most = std::max(most, part.occurrences());
  const int shift = bit_width(static_cast<uint64_t>(most - 1));
  job->low = shift + bit_width(std::max<size_t>(job->parts.size(), 1) - 1);
  if (job->low > 32) throw std::length_error("more than 2^32 occurrences are pending for one table");
  const auto* hash = dynamic_cast<const HashTable*>(&home);
  job->update = {rows.spec(), rows.column(), {{nullptr, 0, 0}, {nullptr, 0, 0}}, step, job->sources.data(), shift, true, false, 0, 0,
                 nullptr, nullptr, nullptr, 0, hash ? id_in : nullptr, hash, nullptr, nullptr, 0, 0};
  job->pass = pass;
  for (int k = 0; k < rows.states(); ++k) job->update.state[k] = rows.state(k);
  for (const Source& source : job->sources) {
    job->update.plain &= !source.bag_of && !source.share && !source.winners;
    job->update.some_winners |= source.winners != nullptr;
  }
  return job;
}

void RowUpdate::run_whole(Job& job, int worker) {
  Scratch& scratch = this->scratch(worker);
  const auto emit = [&](const auto& f) {
    for (size_t s = 0; s < job.parts.size(); ++s) job.emit_ids(s, 0, job.parts[s].bags.ids, f);
  };
  job.run(*tables_[job.table], scratch.sorter.sort(emit, 0, 0, job.bits, job.low, job.ids), scratch, job.outcome);
}

// Large tables: their occurrences are first dealt out by the low bits of the slot, in order, to parts that are then
// sorted and updated like small tables. Rows in frequent use tend to have low slots, so the high bits would be no fair
// deal. All tables go through each phase together.
void RowUpdate::run_split(const std::vector<Job*>& jobs) {
  struct Chunk {  // ids [first, last) of source s
    size_t job, s;
    int64_t first, last;
    std::vector<int64_t> at;  // per part: how many items, then where the next one goes
  };
  struct Share {  // items [first, last) of a job, all of one part
    size_t job;
    uint32_t part;
    int64_t first, last;
    Outcome outcome;
  };
  std::vector<Chunk> chunks;
  std::vector<int> dealt(jobs.size());  // bits of a slot that tell its part
  std::vector<size_t> first_chunk;
  for (size_t j = 0; j < jobs.size(); ++j) {
    dealt[j] = std::min({jobs[j]->bits, 10, bit_width(static_cast<uint64_t>(jobs[j]->ids / kPart))});
    first_chunk.push_back(chunks.size());
    for (size_t s = 0; s < jobs[j]->parts.size(); ++s)
      for (int64_t first = 0; first < jobs[j]->parts[s].bags.ids; first += kChunk)
        chunks.push_back({j, s, first, std::min(first + kChunk, jobs[j]->parts[s].bags.ids),
                          std::vector<int64_t>(size_t{1} << dealt[j], 0)});
  }
  first_chunk.push_back(chunks.size());

  auto& pool = ThreadPool::instance();
  const auto part_of = [&](const Chunk& c, uint32_t slot) { return slot & ((1u << dealt[c.job]) - 1); };
  pool.run(static_cast<int64_t>(chunks.size()), [&](int64_t number, int) {
    Chunk& c = chunks[number];
    jobs[c.job]->emit_ids(c.s, c.first, c.last, [&](uint32_t slot, uint32_t) { ++c.at[part_of(c, slot)]; });
  });
  std::vector<Share> shares;
  int64_t total = 0;
  for (size_t j = 0; j < jobs.size(); ++j)
    for (uint32_t part = 0; part < 1u << dealt[j]; ++part) {
      const int64_t first = total;
      for (size_t c = first_chunk[j]; c < first_chunk[j + 1]; ++c) total += std::exchange(chunks[c].at[part], total);
      if (total > first) shares.push_back({j, part, first, total, {}});
    }
  if (static_cast<int64_t>(items_.size()) < total) items_.resize(total);
  pool.run(static_cast<int64_t>(chunks.size()), [&](int64_t number, int) {
    Chunk& c = chunks[number];
    jobs[c.job]->emit_ids(c.s, c.first, c.last, [&](uint32_t slot, uint32_t what) {
      items_[c.at[part_of(c, slot)]++] = static_cast<uint64_t>(slot) << 32 | what;
    });
  });
  pool.run(static_cast<int64_t>(shares.size()), [&](int64_t number, int worker) {
    Share& share = shares[number];
    const Job& job = *jobs[share.job];
    const int shift = dealt[share.job];
    Scratch& scratch = this->scratch(worker);
    const auto emit = [&](const auto& f) {
      for (int64_t i = share.first; i < share.last; ++i)
        f(static_cast<uint32_t>(items_[i] >> 32) >> shift, static_cast<uint32_t>(items_[i]));
    };
    const int64_t count = share.last - share.first;
    const BySlot rows = scratch.sorter.sort(emit, share.part, shift, job.bits - shift, job.low, count);
    job.run(*tables_[job.table], rows, scratch, share.outcome);
  });
  for (const Share& share : shares) jobs[share.job]->outcome.add(share.outcome);
  for (Job* job : jobs) job->outcome.measured.sort();
}

// One for each table that takes a step, with room for the rows that it may be about.
std::vector<std::optional<Change>> RowUpdate::changes(const std::vector<Pending>& pending, const Steps& steps) const {
  std::vector<std::optional<Change>> made(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (!steps[t] || !tables_[t]->home) continue;
    int64_t ids = 0;
    for (const Pending& call : pending)
      for (size_t f = 0; f < call.set->features().size(); ++f)
        if (call.set->features()[f].table == static_cast<int>(t)) ids += call.block.picks[f].count;
    made[t].emplace(*tables_[t], std::min<uint64_t>(ids, tables_[t]->size()));
  }
  return made;
}

std::vector<std::unique_ptr<RowUpdate::Job>> RowUpdate::run(std::vector<Pending>& pending, const Steps& steps, Pass pass,
                                                            const Wholes& wholes, const Tags& tags) {
  const auto& tables = tables_;
  std::vector<std::unique_lock<std::shared_mutex>> alone;
  for (size_t t = 0; t < tables.size(); ++t)
    if (steps[t]) alone.emplace_back(tables[t]->lock());
  auto changes = pass == Pass::Update ? this->changes(pending, steps) : std::vector<std::optional<Change>>(tables.size());
  for (Pending& call : pending)
    for (size_t f = 0; f < call.set->features().size(); ++f) {
      const int t = call.set->features()[f].table;
      auto* hash = dynamic_cast<HashTable*>(tables[t].get());
      const Pick& pick = call.block.picks[f];
      if (hash && steps[t] && call.wanted[t] && call.removals[t] != hash->removals())
        hash->verify({call.block.values + pick.start, call.slots + pick.start, pick.count});
    }

  auto& pool = ThreadPool::instance();
  const bool small = std::all_of(pending.begin(), pending.end(), [](const Pending& call) { return call.block.small(); });
  std::vector<std::unique_ptr<Job>> jobs(tables.size());
  pool.run(static_cast<int64_t>(tables.size()), [&](int64_t t, int) {
    if (!steps[t]) return;
    jobs[t] = job(static_cast<int>(t), pending, *steps[t], pass);
    if (!wholes.empty()) jobs[t]->whole = wholes[t].get();
  }, small);
  // With few tables for many threads, also those of middling size are shared.
  const bool few = static_cast<int64_t>(tables.size()) < 4 * int64_t{pool.threads()} && pool.threads() > 2;
  std::vector<Job*> whole, split;
  for (auto& job : jobs)
    if (job && job->ids > 0) (job->ids > (few ? 2 * kPart : kWhole) ? split : whole).push_back(job.get());
  std::stable_sort(whole.begin(), whole.end(), [](const Job* a, const Job* b) { return a->ids > b->ids; });
  if (!split.empty()) run_split(split);
  pool.run(static_cast<int64_t>(whole.size()), [&](int64_t i, int worker) { run_whole(*whole[i], worker); }, small);

  for (size_t t = 0; t < tables.size(); ++t)
    if (auto* hash = dynamic_cast<HashTable*>(tables[t].get()); hash && steps[t] && pass == Pass::Update) hash->advance();
  for (size_t t = 0; t < tables.size(); ++t)
    if (changes[t]) changes[t]->done(tags.empty() ? std::nullopt : tags[t]);
  return jobs;
}

std::vector<StepResult> RowUpdate::apply(std::vector<Pending>& pending, const Steps& steps, bool norm_only,
                                         const Wholes& wholes, const Tags& tags) {
  std::lock_guard lock(mutex_);
  const auto jobs = run(pending, steps, norm_only ? Pass::Norm : Pass::Update, wholes, tags);
  std::vector<StepResult> results(jobs.size());
  for (size_t t = 0; t < jobs.size(); ++t)
    if (jobs[t]) results[t] = jobs[t]->outcome.result, results[t].squares = jobs[t]->outcome.norm.value();
  return results;
}

RowUpdate::Wholes RowUpdate::measure(std::vector<Pending>& pending, const Steps& steps, const std::vector<int64_t>& dims) {
  std::lock_guard lock(mutex_);
  const auto jobs = run(pending, steps, Pass::Measure, {}, {});
  Wholes found(jobs.size());
  for (size_t t = 0; t < jobs.size(); ++t) {
    if (!jobs[t]) continue;
    found[t] = std::make_shared<WholeRows>(std::move(jobs[t]->outcome.measured));
    found[t]->dim = dims[t];
  }
  return found;
}

bool RowUpdate::finite(const std::vector<Pending>& pending, const std::vector<bool>& wanted) const {
  std::atomic<bool> all{true};
  for (const Pending& call : pending)
    for (int f = 0; f < static_cast<int>(call.set->features().size()); ++f) {
      const int table = call.set->features()[f].table;
      const auto [grad, stride] = call.set->part(call.grad, f, call.block.batch);
      if (!wanted[table] || !call.wanted[table] || grad == nullptr) continue;
      const int64_t rows = call.set->bags(call.block, call.slots, f).bags, dim = tables_[table]->rows.spec().dim;
      const int64_t step = std::max<int64_t>(1, kChunk / dim);
      ThreadPool::instance().run((rows + step - 1) / step, [&, g = grad, stride = stride](int64_t task, int) {
        bool good = true;
        for (int64_t r = task * step; r < std::min(rows, (task + 1) * step); ++r)
          for (int64_t c = 0; c < dim; ++c) good &= (bits_of(g[r * stride + c]) & 0x7F800000) != 0x7F800000;
        if (!good) all = false;
      });
    }
  return all;
}

}  // namespace hybridrec
