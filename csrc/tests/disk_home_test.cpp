// A table on disk: changes as a whole or not at all, by several threads; cuts.
#include "disk_home.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "buckets.h"
#include "check.h"
#include "hash_table_use.h"
#include "thread_pool.h"

namespace hybridrec {
namespace {

namespace fs = std::filesystem;

struct Folder {
  std::string path;
  Folder() {
    path = (fs::temp_directory_path() / "hybridrec-XXXXXX").string();
    CHECK(mkdtemp(path.data()) != nullptr);
  }
  ~Folder() { fs::remove_all(path); }
  Place place(const std::string& sub = "table", bool read_only = false) const { return {path + "/" + sub, "user", 0, read_only}; }
};

// Of a row: touched, count, first column.
using Content = std::map<int64_t, std::tuple<uint32_t, uint32_t, float>>;

Content content(const HashTable& table) {
  Content found;
  for (uint32_t slot : table.live())
    found[table.id_of(slot)] = {table.touched(slot), table.count(slot), first_column(table, slot)};
  return found;
}

std::vector<int64_t> range(int64_t first, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t id = first; id < last; ++id) ids.push_back(id);
  return ids;
}

// A training lookup of one feature.
std::vector<uint32_t> learn(HashTable& table, const std::vector<int64_t>& ids) {
  std::vector<uint32_t> slots(ids.size());
  const IdSpan span{ids.data(), slots.data(), static_cast<int64_t>(ids.size())};
  {
    std::shared_lock<std::shared_mutex> shared(table.lock());
    if (table.find(span, true) == 0) return slots;
  }
  std::unique_lock<std::shared_mutex> alone(table.lock());
  Change change(table);
  table.fill(table.admit({span}));
  change.done();
  return slots;
}

// A step, its rows dealt to threads.
void add(HashTable& table, const std::vector<uint32_t>& slots, float by) {
  const auto n = static_cast<int64_t>(slots.size());
  ThreadPool::instance().run((n + 99) / 100, [&](int64_t task, int) {
    const int64_t first = task * 100, last = std::min(n, first + 100);
    table.changing(slots.data() + first, last - first);
    for (int64_t i = first; i < last; ++i) *reinterpret_cast<float*>(table.rows.column().at(slots[i])) += by;
  });
  table.advance();
}

void step(HashTable& table, const std::vector<uint32_t>& slots, float by, const std::optional<Tag>& tag = {}) {
  std::unique_lock<std::shared_mutex> alone(table.lock());
  Change change(table, slots.size());
  add(table, slots, by);
  change.done(tag);
}

TEST("a table on disk is there again, with its clock, its figures and its tags") {
  const Folder folder;
  Content held;
  {
    DiskTable table(spec(), policy(3000, Eviction::Lfu), folder.place());
    step(table, learn(table, range(0, 2500)), 1, Tag{4, 5, 6});
    step(table, learn(table, range(2000, 3500)), 2, Tag{9, 1, 1});
    step(table, learn(table, range(3000, 3100)), 3, Tag{4, 5, 7});
    held = content(table);
  }
  DiskTable table(spec(), policy(3000, Eviction::Lfu), folder.place());
  CHECK(content(table) == held && table.clock() == 3 && table.counters().evicted > 0);
  const auto tags = table.disk().tags();
  CHECK(tags.size() == 2 && tags[0].source == 4 && tags[0].second == 7 && tags[1].source == 9);
}

TEST("a change that fails is undone, whichever threads made it") {
  ThreadPool::instance().resize(4);
  const Folder folder;
  DiskTable table(spec(), policy(3000, Eviction::Lru), folder.place());
  const auto slots = learn(table, range(0, 3000));
  step(table, slots, 1);
  const Content held = content(table);
  const uint64_t removals = table.removals();
  {
    std::unique_lock<std::shared_mutex> alone(table.lock());
    Change change(table);
    add(table, slots, 5);
    const std::vector<int64_t> gone = range(100, 900);
    table.erase(gone.data(), 800);
    std::vector<uint32_t> put(500);
    const std::vector<int64_t> come = range(9000, 9500);
    table.fill(table.put(come.data(), 500, put.data()));
  }
  CHECK(content(table) == held && table.clock() == 1 && table.removals() > removals);
  step(table, learn(table, range(0, 3000)), 1);
  CHECK(content(table) != held);
  ThreadPool::instance().resize(1);
}

TEST("what a process leaves in the middle of a change is what was before, also for who only reads") {
  const Folder folder;
  DiskTable table(spec(), policy(8'000, Eviction::Lru), folder.place());
  const auto slots = learn(table, range(0, 4'000));
  const Content held = content(table);
  std::unique_lock<std::shared_mutex> alone(table.lock());
  Change change(table);
  add(table, slots, 5);
  const std::vector<int64_t> gone = range(100, 1900), come = range(30'000, 33'000);
  table.erase(gone.data(), 1800);
  std::vector<uint32_t> put(3'000);
  table.fill(table.put(come.data(), 3'000, put.data()));
  fs::copy(folder.path + "/table", folder.path + "/left");
  change.done();
  {
    const DiskTable reader(spec(), policy(8'000, Eviction::Lru), folder.place("left", true));
    const DiskTable second(spec(), policy(8'000, Eviction::Lru), folder.place("left", true));
    CHECK(content(reader) == held && content(second) == held);
  }
  DiskTable again(spec(), policy(8'000, Eviction::Lru), folder.place("left"));
  CHECK(content(again) == held);
  CHECK(content(table) != held && table.size() == 4'000 - 1800 + 3'000);
}

// What an optimizer does: rows change, and their records do not.
void train(HashTable& table, const std::vector<uint32_t>& slots, float by) {
  table.changing_values(slots.data(), static_cast<int64_t>(slots.size()));
  for (const uint32_t slot : slots) *reinterpret_cast<float*>(table.rows.column().at(slot)) += by;
}

TEST("an update that a process leaves undone is what was before, also of rows that it was told of twice") {
  const Folder folder;
  DiskTable table(spec(), policy(8'000, Eviction::Lru), folder.place());
  const auto slots = learn(table, range(0, 4'000));
  const Content held = content(table);
  std::unique_lock<std::shared_mutex> alone(table.lock());
  Change change(table, slots.size());
  train(table, slots, 5);
  train(table, {slots[7], slots[3'999]}, 3);
  add(table, {slots[7], slots[8]}, 4);
  table.erase(range(8, 20).data(), 12);
  fs::copy(folder.path + "/table", folder.path + "/left");
  change.done();
  CHECK(content(table) != held);
  const DiskTable again(spec(), policy(8'000, Eviction::Lru), folder.place("left"));
  CHECK(content(again) == held && again.clock() == 0);
}

TEST("updates go back to a cut, whether or not there were others before it") {
  const Folder folder;
  DiskTable table(spec(), policy(500, Eviction::Lru), folder.place());
  const auto slots = learn(table, range(0, 400));
  const auto update = [&](const std::vector<uint32_t>& some, float by) {
    std::unique_lock<std::shared_mutex> alone(table.lock());
    Change change(table, some.size());
    train(table, some, by);
    change.done();
  };
  update({slots.begin(), slots.begin() + 200}, 1);
  const Content held = content(table);
  table.disk().cut("here");
  update({slots.begin() + 100, slots.begin() + 300}, 2);
  update({slots.begin() + 100, slots.begin() + 150}, 4);
  CHECK(content(table) != held);
  table.disk().roll_back("here");
  CHECK(content(table) == held);
}

TEST("a roll back restores scores that threads have touched side by side") {
  const Folder folder;
  DiskTable table(spec(), policy(500, Eviction::Lfu), folder.place());
  const auto ids = range(0, 400);
  step(table, learn(table, ids), 1);
  const Content held = content(table);
  table.disk().cut("here");
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        std::vector<uint32_t> slots(ids.size());
        std::shared_lock<std::shared_mutex> shared(table.lock());
        table.find({ids.data(), slots.data(), 400}, true);
      });
    for (auto& thread : threads) thread.join();
    {
      std::unique_lock<std::shared_mutex> alone(table.lock());
      table.advance();
    }
    step(table, learn(table, range(round * 100, round * 100 + 250)), 1);
  }
  CHECK(content(table) != held);
  table.disk().roll_back("here");
  CHECK(content(table) == held && table.clock() == 1);
}

TEST("who opens a table twice, or as another one, is told") {
  const Folder folder;
  const DiskTable table(spec(), policy(500, Eviction::Lfu), folder.place());
  CHECK_THROWS(DiskError, DiskTable(spec(), policy(500, Eviction::Lfu), folder.place()), "is open already");
  const Folder other;
  { const DiskTable made(spec(), policy(500, Eviction::Lfu), other.place()); }
  CHECK_THROWS(std::invalid_argument, DiskTable(spec(), policy(501, Eviction::Lfu), other.place()), "capacity 500, not 501");
}

TEST("buckets that are taken never overlap, and those given back are used again") {
  const Folder folder;
  MappedFile file(folder.path + "/index", Access::Create, size_t{1} << 26);
  file.grow(Buckets::kBytes);
  Buckets buckets(file);
  std::mt19937 random(7);
  std::map<uint64_t, uint32_t> taken;
  std::vector<Stripe> stripes(1, Stripe{0, 1, 0});
  for (int turn = 0; turn < 3000; ++turn) {
    if (taken.size() > 40 || (!taken.empty() && random() % 2)) {
      const auto picked = std::next(taken.begin(), random() % taken.size());
      buckets.give(picked->first, picked->second, random() % 2);
      taken.erase(picked);
      if (random() % 4 == 0) buckets.settle();
      continue;
    }
    const uint32_t count = 1 + random() % 200;
    const uint64_t at = buckets.take(count);
    CHECK(at >= Buckets::kBytes && at % Buckets::kBytes == 0 && at + count * Buckets::kBytes <= file.size());
    for (uint64_t i = 0; i < count * Buckets::kBytes; ++i) CHECK(file.data()[at + i] == 0);
    std::memset(file.data() + at, 1, count * Buckets::kBytes);
    const auto after = taken.upper_bound(at);
    CHECK(after == taken.end() || at + count * Buckets::kBytes <= after->first);
    CHECK(after == taken.begin() || std::prev(after)->first + std::prev(after)->second * Buckets::kBytes <= at);
    taken[at] = count;
    if (turn % 500 == 499) {
      stripes.assign(1, Stripe{0, 1, 0});
      for (const auto& [where, many] : taken) stripes.push_back({where, many, 0});
      buckets.begin_anew(stripes.data(), stripes.size());
    }
  }
  CHECK(file.size() < 3 * 41 * 200 * Buckets::kBytes);
}

}  // namespace
}  // namespace hybridrec
