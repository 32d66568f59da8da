#include "hash_table.h"

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "hash_table_use.h"
#include "philox.h"

namespace hybridrec {
namespace {

using Ids = std::vector<int64_t>;

TEST("a training lookup gives each new id a row of its own, and finds it again") {
  HashTable table(spec(), policy(100, Eviction::Lru));
  const int64_t lowest = std::numeric_limits<int64_t>::min(), highest = std::numeric_limits<int64_t>::max();
  const Ids ids = {0, -1, lowest, 0, highest, -1};
  const Looked first = train(table, {ids});
  CHECK((first.born.ids == Ids{0, -1, lowest, highest}));
  CHECK(first.slots[0] == first.slots[3] && first.slots[1] == first.slots[5]);
  CHECK(std::set<uint32_t>(first.slots.begin(), first.slots.end()).size() == 4);
  const Looked second = train(table, {ids});
  CHECK(second.slots == first.slots && second.born.ids.empty());
  CHECK(table.size() == 4 && live_ids(table) == (Ids{lowest, -1, 0, highest}));
  const Counters counters = table.counters();
  CHECK(counters.hits == 6 && counters.misses == 6 && counters.inserted == 4 && counters.refused == 0);
}

TEST("a lookup outside training neither inserts nor touches nor counts") {
  HashTable table(spec(), policy(100, Eviction::Lfu));
  train(table, {{5}});
  table.advance();
  const auto slots = look(table, {5, 6});
  CHECK(slots[0] != kMissing && slots[1] == kMissing);
  CHECK(table.size() == 1 && table.touched(slots[0]) == 0 && table.count(slots[0]) == 1);
  CHECK(table.counters().hits == 0 && table.counters().misses == 1);
}

TEST("several features of one table share its rows, in order of feature and position") {
  HashTable table(spec(), policy(100, Eviction::Lfu));
  const Looked looked = train(table, {{3, 1}, {}, {1, 2, 3}});
  CHECK((looked.born.ids == Ids{3, 1, 2}));
  CHECK(looked.slots[0] == looked.slots[4] && looked.slots[1] == looked.slots[2]);
  CHECK(table.count(looked.slots[0]) == 2 && table.count(looked.slots[3]) == 1);
}

TEST("under LRU the rows not seen for longest go first, ties by the lower id") {
  HashTable table(spec(), policy(4, Eviction::Lru));
  train(table, {{10, -20, 30, 40}});
  table.advance();
  train(table, {{30}});
  table.advance();
  train(table, {{50}});
  CHECK((live_ids(table) == Ids{10, 30, 40, 50}));
  train(table, {{60}});
  CHECK((live_ids(table) == Ids{30, 40, 50, 60}));
  CHECK(table.counters().evicted == 2);
}

TEST("under LFU the rows seen least often go first, ties by the lower id") {
  HashTable table(spec(), policy(4, Eviction::Lfu));
  train(table, {{1, 2, 3, 4, 1, 1, 4}});
  table.advance();
  train(table, {{3}});
  table.advance();
  train(table, {{5}});
  CHECK((live_ids(table) == Ids{1, 3, 4, 5}));
  table.advance();
  train(table, {{6, 7}});
  CHECK((live_ids(table) == Ids{1, 4, 6, 7}));
}

TEST("a full table evicts a sixty-fourth of itself at once") {
  HashTable table(spec(), policy(640, Eviction::Lru));
  Ids ids(640);
  for (int64_t i = 0; i < 640; ++i) ids[i] = i;
  train(table, {ids});
  table.advance();
  train(table, {{-5}});
  CHECK(table.size() == 631 && table.counters().evicted == 10);
  CHECK(look(table, {9})[0] == kMissing && look(table, {10})[0] != kMissing);
}

TEST("rows of the present step are pinned, and too many of them are an error that changes nothing") {
  HashTable table(spec(), policy(5, Eviction::Lru));
  train(table, {{1, 2, 3}});
  table.advance();
  train(table, {{2, 4}});
  const auto before = scores(table);
  const Counters counted = table.counters();
  CHECK_THROWS(std::length_error, train(table, {{5, 6, 7, 8}}),
               "table holds 5 rows and 3 more are needed, but only 2 may be evicted");
  CHECK(scores(table) == before && table.counters().evicted == 0 && table.counters().inserted == counted.inserted);
  train(table, {{5, 6, 7}});
  CHECK((live_ids(table) == Ids{2, 4, 5, 6, 7}));
  CHECK_THROWS(std::length_error, train(table, {{9}}), "1 more are needed, but only 0 may be evicted");
}

TEST("what an error leaves behind is as it was: expired rows, sketch and slots") {
  Policy rules = policy(3, Eviction::Ttl);
  rules.ttl_steps = 1;
  rules.min_count = 2;
  HashTable table(spec(), rules);
  train(table, {{1, 2, 3, 1, 2, 3}});
  for (int step = 0; step < 3; ++step) table.advance();
  const std::vector<uint8_t> sketch(table.sketch()->data(), table.sketch()->data() + table.sketch()->bytes());
  Ids ids = {1, 4, 4, 5, 5, 6, 6};
  std::vector<uint32_t> slots(ids.size(), kMissing);
  CHECK_THROWS(std::length_error, table.admit({{ids.data(), slots.data(), 7}}), "3 more are needed, but only 2");
  CHECK(std::vector<uint32_t>(7, kMissing) == slots);
  CHECK(look(table, {1, 2, 3}) == std::vector<uint32_t>(3, kMissing));
  CHECK(std::equal(sketch.begin(), sketch.end(), table.sketch()->data()));
  CHECK(table.size() == 3 && table.counters().expired == 0);
}

TEST("an id that somebody else has admitted meanwhile is found, and pinned before room is made") {
  HashTable table(spec(), policy(3, Eviction::Lfu));
  const uint32_t slot = train(table, {{1, 2, 3, 2, 3}}).slots[0];
  table.advance();
  const Ids ids = {7, 1, 8, 1};
  std::vector<uint32_t> slots(4, kMissing);
  CHECK((table.admit({{ids.data(), slots.data(), 4}}).ids == Ids{7, 8}));
  CHECK((live_ids(table) == Ids{1, 7, 8}) && slots[1] == slot && slots[3] == slot);
  CHECK(table.count(slot) == 3 && table.touched(slot) == 1);
}

TEST("without eviction a full table refuses new ids, and counts them") {
  HashTable table(spec(), policy(3, Eviction::None));
  const Looked looked = train(table, {{1, 2, 9, 3, 9, 4, 1}});
  CHECK((live_ids(table) == Ids{1, 2, 9}));
  CHECK(looked.slots[3] == kMissing && looked.slots[5] == kMissing && looked.slots[4] == looked.slots[2]);
  table.advance();
  train(table, {{3, 1}});
  CHECK(table.counters().refused == 3 && table.counters().evicted == 0 && table.size() == 3);
  const int64_t four = 4;
  uint32_t slot;
  CHECK_THROWS(std::length_error, table.put(&four, 1, &slot), "1 more are needed");
}

TEST("under TTL a row not seen for too long is gone, and a returning id starts anew") {
  Policy rules = policy(10, Eviction::Ttl);
  rules.ttl_steps = 2;
  HashTable table(spec(), rules);
  const Looked first = train(table, {{1, 2}});
  table.advance();
  table.advance();
  train(table, {{2}});
  CHECK(look(table, {1, 2})[0] != kMissing);
  table.advance();
  CHECK(look(table, {1})[0] == kMissing && look(table, {2})[0] != kMissing);
  CHECK((live_ids(table) == Ids{2}));
  const Ids one = {1};
  std::vector<uint32_t> slots = {first.slots[0]};
  CHECK(table.verify({one.data(), slots.data(), 1}) == 1 && slots[0] == kMissing);
  const auto removals = table.removals();
  const Looked back = train(table, {{2, 1, 1}});
  CHECK((back.born.ids == Ids{1}));
  CHECK(back.slots[1] != kMissing && back.slots[1] == back.slots[2] && table.id_of(back.slots[1]) == 1);
  CHECK((live_ids(table) == Ids{1, 2}) && table.size() == 2);
  CHECK(table.counters().expired == 1 && table.counters().inserted == 3 && table.removals() == removals + 1);
}

TEST("under TTL room is made oldest first, and counts as expired where it is") {
  Policy rules = policy(3, Eviction::Ttl);
  rules.ttl_steps = 1;
  HashTable table(spec(), rules);
  train(table, {{1}});
  table.advance();
  train(table, {{2}});
  table.advance();
  train(table, {{3}});
  train(table, {{4}});
  CHECK((live_ids(table) == Ids{2, 3, 4}) && table.counters().expired == 1 && table.counters().evicted == 0);
  train(table, {{5}});
  CHECK((live_ids(table) == Ids{3, 4, 5}) && table.counters().evicted == 1);
}

TEST("a returning id keeps its room while others are evicted") {
  Policy rules = policy(3, Eviction::Ttl);
  rules.ttl_steps = 1;
  HashTable table(spec(), rules);
  train(table, {{1, 2, 3}});
  for (int step = 0; step < 3; ++step) table.advance();
  const Looked looked = train(table, {{4, 1}});
  CHECK((looked.born.ids == Ids{4, 1}) && (live_ids(table) == Ids{1, 4}) && table.size() == 3);
  CHECK(table.id_of(looked.slots[0]) == 4 && table.id_of(looked.slots[1]) == 1);
}

TEST("ids are admitted by a draw of their own, the same every time") {
  Policy rules = policy(100000, Eviction::Lru);
  rules.probability = 0.25;
  HashTable table(spec(), rules);
  Ids ids(20000);
  for (int64_t i = 0; i < 20000; ++i) ids[i] = i * 977 - 5000;
  train(table, {ids});
  CHECK(std::abs(table.size() - 5000) < 300);
  for (int64_t id : ids) {
    const bool expected = philox_of(id, kAdmissionColumn, kDrawUniform, spec().key).word[0] < 1u << 30;
    CHECK((look(table, {id})[0] != kMissing) == expected);
  }
  const int64_t size = table.size();
  train(table, {ids});
  CHECK(table.size() == size && table.counters().refused == 2 * (20000 - size));
  rules.probability = 0;
  HashTable closed(spec(), rules);
  train(closed, {ids});
  CHECK(closed.size() == 0);
}

TEST("a minimum count admits an id in the batch that completes it") {
  Policy rules = policy(100, Eviction::Lru);
  rules.min_count = 3;
  HashTable table(spec(), rules);
  CHECK(train(table, {{1, 2, 1}}).slots == std::vector<uint32_t>(3, kMissing));
  const Looked looked = train(table, {{1, 2, 3, 3, 3}});
  CHECK((looked.born.ids == Ids{1, 3}));
  CHECK(looked.slots[1] == kMissing && looked.slots[2] != kMissing);
  CHECK(table.counters().refused == 4);
  HashTable other(spec(), rules);
  other.sketch()->load(table.sketch()->data(), table.sketch()->bytes());
  CHECK((train(other, {{2, 4}}).born.ids == Ids{2}));
  CHECK(HashTable(spec(), policy(100, Eviction::Lru)).sketch() == nullptr);
}

TEST("what is put is there whether it would be admitted or not, with the scores it is given") {
  Policy rules = policy(4, Eviction::Lfu);
  rules.probability = 0;
  rules.min_count = 7;
  HashTable table(spec(), rules);
  table.set_clock(50);
  const Ids ids = {8, 9, 8, 7};
  std::vector<uint32_t> slots(4);
  const auto born = table.put(ids.data(), 4, slots.data());
  CHECK((born.ids == Ids{8, 9, 7}) && slots[0] == slots[2] && table.id_of(slots[3]) == 7);
  table.set_score(slots[1], 20, 5);
  CHECK(table.touched(slots[1]) == 20 && table.count(slots[1]) == 5 && table.clock() == 50);
  const Ids more = {1, 2};
  table.put(more.data(), 2, slots.data());
  CHECK((live_ids(table) == Ids{1, 2, 7, 8}));
  const Ids many = {1, 3};
  CHECK_THROWS(std::length_error, table.put(many.data(), 2, slots.data()), "only 0 may be evicted");
}

TEST("counts of LFU stop before they wrap") {
  HashTable table(spec(), policy(4, Eviction::Lfu));
  const uint32_t slot = train(table, {{1}}).slots[0];
  table.set_score(slot, 0, 0xFFFEFFFFu);
  for (int i = 0; i < 3; ++i) train(table, {Ids(40000, 1)});
  const uint32_t most = table.count(slot);
  CHECK(most == 0xFFFF0000u);
  table.set_score(slot, 0, 0xFFFFFFFFu);
  train(table, {{1}});
  CHECK(table.count(slot) == most);
  const Ids ids(140000, 1);
  std::vector<uint32_t> slots(ids.size());
  table.set_score(slot, 0, 0xFFFEFFFFu);
  table.put(ids.data(), 140000, slots.data());
  CHECK(table.count(slot) == most);
}

TEST("gradients of rows that have gone are dropped and counted, others stay") {
  HashTable table(spec(), policy(3, Eviction::Lru));
  Ids ids = {1, 2, 3, 4};
  std::vector<uint32_t> slots = train(table, {{1, 2, 3}}).slots;
  const auto removals = table.removals();
  slots.push_back(kMissing);
  table.advance();
  train(table, {{3}});
  CHECK(table.removals() == removals);
  train(table, {{7, 8}});
  CHECK(table.removals() == removals + 2);
  const uint32_t kept = slots[2];
  CHECK(table.verify({ids.data(), slots.data(), 4}) == 2);
  CHECK((slots == std::vector<uint32_t>{kMissing, kMissing, kept, kMissing}));
  CHECK(table.counters().dropped == 2);
  table.clear();
  CHECK(table.verify({ids.data(), slots.data(), 4}) == 1 && slots[2] == kMissing);
}

TEST("a slot that no row has belongs to no id") {
  HashTable table(spec(), policy(10, Eviction::Lru));
  const Ids ids = {5, 0};
  std::vector<uint32_t> slots = train(table, {ids}).slots;
  table.erase(ids.data(), 2);  // the record of the second now names slot 0, the one that was given back before it
  CHECK(table.verify({ids.data(), slots.data(), 2}) == 2);
}

TEST("erased rows are gone, their slots serve again, and clear empties everything") {
  Policy rules = policy(1000, Eviction::Lru);
  rules.min_count = 2;
  HashTable table(spec(), rules);
  train(table, {{1, 2, 3, 4, 1, 2, 3, 4}});
  const Ids gone = {2, 99, 3, 2};
  table.erase(gone.data(), 4);
  CHECK((live_ids(table) == Ids{1, 4}) && table.size() == 2);
  train(table, {{5, 5, 6, 6, 7, 7}});
  CHECK((live_ids(table) == Ids{1, 4, 5, 6, 7}) && table.rows.size() == 5);
  table.clear();
  CHECK(table.size() == 0 && live_ids(table).empty() && look(table, {1})[0] == kMissing);
  CHECK(train(table, {{5}}).slots[0] == kMissing);  // the sketch has forgotten it too
  CHECK((train(table, {{5, 1, 1}}).born.ids == Ids{5, 1}) && table.size() == 2);
}

TEST("a row costs at most 24 bytes beside its values, and a large capacity costs nothing") {
  for (Eviction eviction : {Eviction::Lru, Eviction::Lfu}) {
    HashTable table(spec(), policy(1000000000000ull, eviction));
    CHECK(table.rows.most() == 0xFFFFFFFEull);
    const Memory empty = table.memory();
    CHECK(empty.keys + empty.scores + empty.index + empty.sketch + empty.slack < 100000);
    Ids ids(50000);
    for (int64_t batch = 0; batch < 10; ++batch) {
      for (int64_t i = 0; i < 50000; ++i) ids[i] = (batch * 50000 + i) * 7919;
      train(table, {ids});
    }
    CHECK(table.size() == 500000 && table.memory().keys == 4000000);
    CHECK(table.memory().per_row(table.size()) < (eviction == Eviction::Lfu ? 24 : 20));
  }
}

TEST("rules that cannot be are refused by name") {
  CHECK_THROWS(std::invalid_argument, HashTable(spec(), policy(0, Eviction::Lru)), "capacity");
  Policy rules = policy(1, Eviction::Lru);
  rules.min_count = 65536;
  CHECK_THROWS(std::invalid_argument, HashTable(spec(), rules), "65536");
  rules.min_count = 1;
  rules.probability = std::nan("");
  CHECK_THROWS(std::invalid_argument, HashTable(spec(), rules), "[0, 1]");
  CHECK(eviction_kind("ttl") == Eviction::Ttl);
  CHECK_THROWS(std::invalid_argument, eviction_kind("fifo"), "none, lru, lfu or ttl, not fifo");
}

TEST("room for rows to come takes memory and changes nothing, and rows appended later are found in it") {
  HashTable table(spec(), policy(100'000, Eviction::Lfu));
  for (int round = 0; round < 2; ++round) {  // once empty, once with the rows of the first
    const auto before = scores(table);
    table.make_room(80'000);
    CHECK(scores(table) == before && table.rows.size() >= 80'000 && table.rows.size() < 100'000);
    std::vector<int64_t> ids(80'000), touched(80'000, 3);
    for (int64_t i = 0; i < 80'000; ++i) ids[i] = i * i + round;
    table.reserve_empty(80'000);
    CHECK(table.append(ids.data(), touched.data(), nullptr, 80'000) == -1 && table.size() == 80'000);
    const std::vector<uint32_t> slots = look(table, ids);
    for (uint32_t i = 0; i < 80'000; ++i) CHECK(slots[i] == i);
    CHECK(look(table, {80'000ll * 80'000}) == std::vector<uint32_t>{kMissing});
  }
  table.make_room(1'000'000);  // as far as the capacity goes
  CHECK(table.rows.size() == 100'000);
}

TEST("rows appended in bulk are found, lie in the order given, and twice the same id is refused") {
  HashTable table(spec(), policy(200'000, Eviction::Lfu));
  std::vector<int64_t> ids, touched, counts;
  for (int64_t i = 0; i < 150'000; ++i) {
    ids.push_back(i * 7919 % 1'000'003 - 500'000);
    touched.push_back(i % 9);
    counts.push_back(i % 5 + 1);
  }
  table.reserve_empty(ids.size());
  for (size_t first : {size_t{0}, size_t{100'000}}) {
    const auto n = static_cast<int64_t>(first == 0 ? 100'000 : ids.size() - first);
    CHECK(table.append(ids.data() + first, touched.data() + first, counts.data() + first, n) == -1);
  }
  const auto slots = look(table, ids);
  bool same = table.size() == static_cast<int64_t>(ids.size());
  for (size_t i = 0; i < ids.size(); ++i)
    same &= slots[i] == i && table.touched(slots[i]) == touched[i] && table.count(slots[i]) == counts[i];
  CHECK(same);
  train(table, {{5'000'000, ids[3]}});  // goes on as usual
  CHECK(table.size() == static_cast<int64_t>(ids.size()) + 1);

  const std::vector<int64_t> twice{1, 2, 1};
  table.reserve_empty(3);
  CHECK(table.append(twice.data(), touched.data(), nullptr, 3) == 2 && table.size() == 0);
  CHECK_THROWS(std::length_error, table.reserve_empty(200'001), "more rows are to be restored than the capacity");
}

}  // namespace
}  // namespace hybridrec
