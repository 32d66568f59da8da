// The hash table used by many threads, for the thread sanitizer above all.
#include <atomic>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "hash_table.h"
#include "hash_table_use.h"

namespace hybridrec {
namespace {

std::vector<int64_t> some(std::mt19937_64& random, int64_t first, int64_t range, size_t count) {
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = first + static_cast<int64_t>(random() % range);
  return ids;
}

// How many of the slots found, under the lock, hold another id or another row than they should.
int64_t wrong_rows(const HashTable& table, const std::vector<int64_t>& ids, const std::vector<uint32_t>& slots) {
  int64_t wrong = 0;
  for (size_t i = 0; i < ids.size(); ++i)
    if (slots[i] != kMissing)
      wrong += table.id_of(slots[i]) != ids[i] || first_column(table, slots[i]) != initial(ids[i]);
  return wrong;
}

// Threads that look up, train or not, until `stop`; returns what was wrong.
class Readers {
 public:
  Readers(HashTable& table, int count, int64_t range) {
    for (int t = 0; t < count; ++t)
      threads_.emplace_back([this, &table, t, range] {
        std::mt19937_64 random(t);
        while (!stop_) {
          const auto ids = some(random, 0, range, 100);
          std::vector<uint32_t> slots(ids.size());
          std::shared_lock<std::shared_mutex> shared(table.lock());
          table.find({ids.data(), slots.data(), 100}, t % 2 == 0);
          wrong_ += wrong_rows(table, ids, slots);
          wrong_ += table.verify({ids.data(), slots.data(), 100});
          shared.unlock();
          std::this_thread::yield();  // readers may shut a writer out
        }
      });
  }

  int64_t finish() {
    stop_ = true;
    for (auto& thread : threads_) thread.join();
    return wrong_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> wrong_{0};
  std::vector<std::thread> threads_;
};

TEST("readers see only whole rows of their own ids while a table admits and evicts") {
  for (Eviction eviction : {Eviction::Lru, Eviction::Lfu, Eviction::Ttl}) {
    Policy rules = policy(600, eviction);
    rules.ttl_steps = 5;
    HashTable table(spec(), rules);
    Readers readers(table, 3, 4000);
    std::mt19937_64 random(17);
    bool held = true;
    for (int64_t step = 0; step < 200; ++step) {
      const auto ids = some(random, step * 10, 2000, 50);
      std::vector<uint32_t> slots(ids.size(), kMissing);
      std::unique_lock<std::shared_mutex> alone(table.lock());
      table.advance();
      const auto born = table.admit({{ids.data(), slots.data(), 50}});
      table.rows.init(born.slots.data(), born.ids.data(), static_cast<int64_t>(born.ids.size()));
      held = held && table.size() <= 600 && table.rows.size() <= 600;
    }
    CHECK(readers.finish() == 0);
    CHECK(held && table.counters().evicted + table.counters().expired > 100);
  }
}

TEST("readers go on while a table grows a hundredfold") {
  HashTable table(spec(), policy(1 << 20, Eviction::Lru));
  Readers readers(table, 2, 60000);
  for (int64_t first = 0; first < 60000; first += 600) {
    std::vector<int64_t> ids(600);
    for (int64_t i = 0; i < 600; ++i) ids[i] = first + i;
    train(table, {ids});
  }
  CHECK(readers.finish() == 0);
  CHECK(table.size() == 60000);
}

TEST("slots that threads find in a step stay theirs until the step ends, however full the table is") {
  HashTable table(spec(), policy(200, Eviction::Lru));
  for (int step = 0; step < 60; ++step) {
    std::vector<std::vector<int64_t>> ids(3);
    std::vector<Looked> looked(3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        std::mt19937_64 random(3 * step + t);
        ids[t] = some(random, step * 5, 400, 60);
        looked[t] = train(table, {ids[t]});
      });
    for (auto& thread : threads) thread.join();
    for (int t = 0; t < 3; ++t) {
      CHECK(table.verify({ids[t].data(), looked[t].slots.data(), 60}) == 0);
      CHECK(wrong_rows(table, ids[t], looked[t].slots) == 0);
      for (uint32_t slot : looked[t].slots) CHECK(slot != kMissing);
    }
    table.advance();
  }
  CHECK(table.counters().evicted > 200);
}

TEST("threads that train on the same new ids at once make one row of each") {
  HashTable table(spec(), policy(100000, Eviction::Lfu));
  std::vector<std::thread> threads;
  std::atomic<int64_t> wrong{0}, born{0};
  constexpr int64_t kThreads = 4, kRounds = 40, kIds = 500;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      std::mt19937_64 random(9);  // the same ids in every thread
      for (int round = 0; round < kRounds; ++round) {
        const auto ids = some(random, 0, 8000, kIds);
        const Looked looked = train(table, {ids});
        born += static_cast<int64_t>(looked.born.ids.size());
        std::shared_lock<std::shared_mutex> shared(table.lock());
        wrong += wrong_rows(table, ids, looked.slots);
        for (uint32_t slot : looked.slots) wrong += slot == kMissing;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(born == table.size() && table.counters().inserted == table.size());
  int64_t occurrences = 0;
  for (uint32_t slot : table.live()) occurrences += table.count(slot);
  CHECK(occurrences == kThreads * kRounds * kIds);
  CHECK(table.counters().hits + table.counters().misses == occurrences);
}

}  // namespace
}  // namespace hybridrec
