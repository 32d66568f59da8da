#include "router.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "thread_pool.h"
#include "xxhash64.h"

namespace hybridrec {
namespace {

// Messages and positions of a routed batch, with bases that keep the segments of all ranks apart.
struct Filled {
  std::vector<std::vector<int64_t>> messages;  // [targets * world]
  std::vector<int64_t> bases;
  std::vector<std::vector<int64_t>> positions;  // per feature asked

  Filled(const Routed& routed, const std::vector<Asked>& asked) {
    int64_t base = 0;
    for (int64_t count : routed.counts()) {
      messages.emplace_back(count, -7);
      bases.push_back(base);
      base += count;
    }
    for (const Asked& each : asked) positions.emplace_back(each.count, -7);
    std::vector<int64_t*> to, places;
    for (auto& message : messages) to.push_back(message.data());
    for (auto& part : positions) places.push_back(part.data());
    routed.fill(to, bases, places);
  }

  // The id that a position leads to, as its holder has it, and the line of it.
  std::pair<size_t, int64_t> at(int64_t position) const {
    size_t line = messages.size() - 1;
    while (bases[line] > position || messages[line].empty()) --line;
    return {line, messages[line][position - bases[line]]};
  }
};

TEST("each id of a table travels once, to its holder, and every place finds its row") {
  constexpr int kWorld = 3;
  std::mt19937_64 random(3);
  std::vector<int64_t> values(600);
  for (int i = 0; i < 600; ++i) values[i] = i < 400 ? random() % 300 : static_cast<int64_t>(random() % 50) - 25;
  const std::vector<Asked> asked = {{0, 0, 250}, {0, 250, 150}, {1, 400, 200}};  // two features share the first table
  for (const auto& [threads, rows] : {std::pair{1, 1000}, {3, 1000}, {1, 1 << 30}, {3, 1 << 30}}) {  // marked, and hashed
    const std::vector<Target> targets = {{rows, OutOfRange::Error, {2, 0}}, {-1, OutOfRange::Error, {0, 1, 2}}};
    ThreadPool::instance().resize(threads);
    const Routed routed(targets, asked, values.data(), kWorld);
    CHECK(!routed.failed());
    const Filled filled(routed, asked);
    for (size_t line = 0; line < filled.messages.size(); ++line) {
      const auto& ids = filled.messages[line];
      CHECK(std::set<int64_t>(ids.begin(), ids.end()).size() == ids.size());
    }
    CHECK(filled.messages[1].empty());  // rank 1 holds nothing of the first table
    for (size_t f = 0; f < asked.size(); ++f)
      for (int64_t i = 0; i < asked[f].count; ++i) {
        const int64_t id = values[asked[f].start + i];
        const auto [line, sent] = filled.at(filled.positions[f][i]);
        const int rank = static_cast<int>(line % kWorld);
        CHECK(static_cast<int>(line / kWorld) == asked[f].target);
        if (asked[f].target == 0) CHECK(rank == (id % 2 ? 0 : 2) && sent == id / 2);
        else CHECK(rank == owner_of(id, 3) && sent == id);
      }
  }
  ThreadPool::instance().resize(1);
}

TEST("ids outside a table have no row, that of their hash, or are the first fault") {
  for (const int64_t rows : {10, 1000}) {  // marked, and hashed
    const std::vector<int64_t> values = {3, -1, rows - 1, rows, 1 << 30};
    const std::vector<Asked> asked = {{0, 0, 2}, {0, 2, 3}};
    const auto routed = [&](OutOfRange policy) { return Routed({{rows, policy, {0}}}, asked, values.data(), 1); };
    const Routed zero = routed(OutOfRange::Zero);
    const Filled none(zero, asked);
    CHECK((none.positions[0] == std::vector<int64_t>{0, -1}) && (none.positions[1] == std::vector<int64_t>{1, -1, -1}));
    const Routed hash = routed(OutOfRange::Hash);
    const Filled hashed(hash, asked);
    CHECK(hashed.at(hashed.positions[0][0]).second == 3);
    CHECK(hashed.at(hashed.positions[1][1]).second == static_cast<int64_t>(xxh64_int(rows, 0) % rows));
    const Routed error = routed(OutOfRange::Error);
    CHECK(error.failed() && error.fault().feature == 0 && error.fault().position == 1 && error.fault().value == -1);
  }
}

TEST("of faults in several tables that of the first feature counts") {
  const std::vector<int64_t> values = {1, 2, 3, 40, 5, 60};
  const std::vector<Asked> asked = {{1, 0, 2}, {0, 2, 2}, {1, 4, 2}};
  const Routed routed({{10, OutOfRange::Error, {0}}, {10, OutOfRange::Error, {0}}}, asked, values.data(), 1);
  CHECK(routed.failed() && routed.fault().feature == 1 && routed.fault().position == 1 && routed.fault().value == 40);
}

TEST("each occurrence of an id travels where a table counts them") {
  const std::vector<int64_t> values = {4, 4, 5, 4};
  const Routed routed({{10, OutOfRange::Error, {0, 1}, true}}, {{0, 0, 4}}, values.data(), 2);
  CHECK((routed.counts() == std::vector<int64_t>{3, 1}));
  const Filled filled(routed, {{0, 0, 4}});
  CHECK((filled.messages[0] == std::vector<int64_t>{2, 2, 2}) && (filled.messages[1] == std::vector<int64_t>{2}));
}

TEST("one more server takes its part of the ids, and no other id moves") {
  int64_t moved = 0;
  for (int64_t id = -5000; id < 5000; ++id) {
    const int64_t before = server_of(id, 4), after = server_of(id, 5);
    CHECK(before == after || after == 4);
    moved += before != after;
  }
  CHECK(moved > 1800 && moved < 2200);
}

TEST("ids of a served table go to the server that draws most for them") {
  const std::vector<int64_t> values = {7, -3, 7, 1 << 20};
  for (const int64_t rows : {int64_t{-1}, int64_t{1} << 31}) {  // dynamic, and fixed
    const Routed routed({{rows, OutOfRange::Hash, {0, 1, 2}, false, true}}, {{0, 0, 4}}, values.data(), 3);
    const Filled filled(routed, {{0, 0, 4}});
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t id = rows < 0 || values[i] >= 0 ? values[i] : static_cast<int64_t>(xxh64_int(values[i], 0) % rows);
      const auto [line, sent] = filled.at(filled.positions[0][i]);
      CHECK(sent == id && static_cast<int64_t>(line) == server_of(id, 3));
    }
  }
}

TEST("a batch without ids has empty messages") {
  const Routed routed({{10, OutOfRange::Error, {0, 1}}}, {{0, 0, 0}}, nullptr, 2);
  CHECK((routed.counts() == std::vector<int64_t>{0, 0}));
  CHECK(Filled(routed, {{0, 0, 0}}).positions[0].empty());
}

}  // namespace
}  // namespace hybridrec
