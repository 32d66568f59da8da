// A capture, read while other threads change the rows.
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "capture.h"
#include "check.h"
#include "hash_table.h"
#include "hash_table_use.h"

namespace hybridrec {
namespace {

// The first columns of all rows by id, read `size` slots at a time; `between` runs after each.
template <typename F>
std::map<int64_t, float> read(Capture& capture, uint64_t size, const F& between) {
  std::map<int64_t, float> found;
  for (uint64_t first = 0; first < capture.records().slots; first += size) {
    std::vector<uint32_t> slots;
    for (uint64_t s = first; s < std::min(first + size, capture.records().slots); ++s)
      if (capture.records().used(static_cast<uint32_t>(s))) slots.push_back(static_cast<uint32_t>(s));
    std::vector<float> rows(4 * slots.size());
    capture.gather(slots.data(), static_cast<int64_t>(slots.size()), reinterpret_cast<uint8_t*>(rows.data()), {});
    for (size_t i = 0; i < slots.size(); ++i) found[capture.records().id(slots[i])] = rows[4 * i];
    between();
  }
  return found;
}

std::map<int64_t, float> now(const HashTable& table) {
  std::map<int64_t, float> found;
  for (uint32_t slot : table.live()) found[table.id_of(slot)] = first_column(table, slot);
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

TEST("a capture may be read by one thread while others train") {
  auto table = std::make_shared<HashTable>(spec(), policy(2000, Eviction::Lru));
  train(*table, {range(0, 2000)});
  for (int round = 0; round < 3; ++round) {
    const auto before = now(*table);
    table->advance();
    Capture capture(table);
    std::map<int64_t, float> found;
    std::thread reader([&] { found = read(capture, 64, [] { std::this_thread::yield(); }); });
    for (int step = 0; step < 20; ++step) {
      change(*table, every_second(*table), 1);
      train(*table, {range(10'000 * round + 30 * step, 10'000 * round + 30 * (step + 1))});
    }
    reader.join();
    CHECK(found == before);
  }
}

}  // namespace
}  // namespace hybridrec
