// A capture, read while other threads change the rows.
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "capture.h"
#include "check.h"
#include "hash_table.h"
#include "hash_table_use.h"

namespace hybridrec {
namespace {

// Of a row: touched, count, first column.
using Content = std::map<int64_t, std::tuple<int64_t, int64_t, float>>;

// All rows by id, read `size` slots at a time; `between` runs after each.
template <typename F>
Content read(Capture& capture, uint64_t size, const F& between) {
  Content found;
  for (uint64_t first = 0; first < capture.slots(); first += size) {
    const std::vector<uint32_t> slots = capture.used(first, first + size);
    const size_t n = slots.size();
    std::vector<int64_t> ids(n), touched(n), counts(n);
    std::vector<float> rows(4 * n);
    capture.read(slots.data(), static_cast<int64_t>(n),
                 {ids.data(), touched.data(), counts.data(), reinterpret_cast<uint8_t*>(rows.data()), {}});
    for (size_t i = 0; i < n; ++i) found[ids[i]] = {touched[i], counts[i], rows[4 * i]};
    between();
  }
  return found;
}

Content now(const HashTable& table) {
  Content found;
  for (uint32_t slot : table.live())
    found[table.id_of(slot)] = {table.touched(slot), table.count(slot), first_column(table, slot)};
  return found;
}

// What a step does to rows.
void change(HashTable& table, const std::vector<uint32_t>& slots, float by) {
  std::unique_lock<std::shared_mutex> alone(table.lock());
  table.changing(slots.data(), static_cast<int64_t>(slots.size()));
  for (uint32_t slot : slots) *reinterpret_cast<float*>(table.rows.column().at(slot)) += by;
  table.advance();
}

std::vector<int64_t> range(int64_t first, int64_t last) {
  std::vector<int64_t> ids;
  for (int64_t id = first; id < last; ++id) ids.push_back(id);
  return ids;
}

std::vector<uint32_t> every_second(const HashTable& table) {
  std::vector<uint32_t> slots;
  for (uint32_t slot : table.live())
    if (slot % 2 == 0) slots.push_back(slot);
  return slots;
}

TEST("a capture has the rows of its moment, whatever changes and goes while it is read") {
  auto table = std::make_shared<HashTable>(spec(), policy(300, Eviction::Lru));
  train(*table, {range(0, 300)});
  const auto before = now(*table);
  table->advance();
  Capture capture(table);
  int64_t next = 300;
  const auto found = read(capture, 50, [&] {
    change(*table, every_second(*table), 1);
    train(*table, {range(next, next + 40)});  // evicts as many
    next += 40;
  });
  CHECK(found == before && now(*table) != before);
}

TEST("a table may have several captures, each of its own moment") {
  auto table = std::make_shared<HashTable>(spec(), policy(100, Eviction::Lru));
  train(*table, {range(0, 100)});
  const auto first = now(*table);
  Capture early(table);
  change(*table, every_second(*table), 1);
  const auto second = now(*table);
  Capture late(table);
  change(*table, every_second(*table), 1);
  CHECK(read(late, 30, [] {}) == second && read(early, 30, [] {}) == first);
}

TEST("a capture knows which slots had no row, whatever comes into them and goes") {
  auto table = std::make_shared<HashTable>(spec(), policy(100, Eviction::Lru));
  train(*table, {range(0, 100)});
  const auto gone = range(20, 60), back = range(40, 70);
  table->erase(gone.data(), 40);
  const auto before = now(*table);
  Capture capture(table);
  train(*table, {back});
  table->erase(back.data(), 30);
  train(*table, {range(200, 240)});
  CHECK(read(capture, 30, [] {}) == before && before.size() == 60);
}

TEST("a capture has the rows of a table that was cleared and filled again") {
  auto table = std::make_shared<HashTable>(spec(), policy(100, Eviction::Lfu));
  train(*table, {range(0, 90)});
  const auto before = now(*table);
  Capture capture(table);
  table->clear();
  const auto found = read(capture, 40, [&] { train(*table, {range(500, 570), range(510, 540)}); });
  CHECK(found == before);
}

TEST("a capture may be read by one thread while others train") {
  for (Eviction eviction : {Eviction::Lru, Eviction::Lfu}) {
    auto table = std::make_shared<HashTable>(spec(), policy(2000, eviction));
    train(*table, {range(0, 2000)});
    for (int round = 0; round < 3; ++round) {
      if (round > 0) table->advance();  // else the rows of the moment are touched at its clock
      const auto before = now(*table);
      Capture capture(table);
      Content found;
      std::thread reader([&] { found = read(capture, 64, [] { std::this_thread::yield(); }); });
      std::thread other([&] {
        for (int step = 0; step < 40; ++step) train(*table, {range(0, 300)});  // mostly ids that are there
      });
      for (int step = 0; step < 20; ++step) {
        change(*table, every_second(*table), 1);
        train(*table, {range(0, 500)});
        train(*table, {range(10'000 * round + 30 * step, 10'000 * round + 30 * (step + 1))});
      }
      reader.join();
      other.join();
      CHECK(found == before);
    }
  }
}

}  // namespace
}  // namespace hybridrec
