#include "sketch.h"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <vector>

#include "check.h"

namespace hybridrec {
namespace {

TEST("a sketch counts a few ids exactly") {
  for (uint32_t most : {100u, 1000u}) {
    Sketch sketch(1 << 16, most);
    for (int64_t id = -100; id < 100; ++id) sketch.add({{id, static_cast<uint32_t>(id + 101)}});
    for (int64_t id = -100; id < 100; ++id) CHECK(sketch.count(id) == static_cast<uint32_t>(id + 101));
    CHECK(sketch.count(12345) == 0);
  }
}

TEST("a crowded sketch is never too low, and seldom too high by more than it says") {
  Sketch sketch(1 << 12, 1000);
  std::unordered_map<int64_t, uint32_t> exact;
  std::mt19937_64 random(5);
  uint32_t total = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto id = static_cast<int64_t>(random() % 5000);
    const uint32_t times = 1 + random() % 3;
    sketch.add({{id, times}});
    exact[id] += times;
    total += times;
  }
  size_t beyond = 0;
  for (const auto& [id, count] : exact) {
    CHECK(sketch.count(id) >= count);
    beyond += sketch.count(id) > count + 2.72 * total / 4096;
  }
  CHECK(beyond * 50 < exact.size());
}

TEST("the order of ids in a batch changes nothing, and those that share all their counters do not add up") {
  Sketch forth(1 << 12, 1000), back(1 << 12, 1000);
  std::vector<Sketch::Seen> batch;
  for (int64_t id = 0; id < 30000; ++id) batch.push_back({id * 7919, static_cast<uint32_t>(1 + id % 5)});
  forth.add(batch);
  CHECK(forth.count(batch[4].id) == 5);  // crowded as it is: nobody has come more often
  std::reverse(batch.begin(), batch.end());
  back.add(batch);
  CHECK(std::equal(forth.data(), forth.data() + forth.bytes(), back.data()));
}

TEST("counters stop at their limit") {
  for (uint32_t most : {255u, 256u}) {
    Sketch sketch(10, most);
    CHECK(sketch.limit() == (most == 255 ? 255u : 65535u));
    sketch.add({{7, sketch.limit() - 1}});
    CHECK(sketch.count(7) == sketch.limit() - 1);
    sketch.add({{7, 0xFFFFFFFFu}});
    CHECK(sketch.count(7) == sketch.limit());
    sketch.add({{7, 1}});
    CHECK(sketch.count(7) == sketch.limit());
  }
}

TEST("a sketch is as wide as the table, within bounds") {
  CHECK(Sketch(1, 2).bytes() == 4 << 12);
  CHECK(Sketch(5000, 2).bytes() == 4 << 13);
  CHECK(Sketch(5000, 300).bytes() == 8 << 13);
  CHECK(Sketch(1000000000000ull, 2).bytes() == size_t{4} << 24);
}

TEST("a sketch comes back from its bytes, and refuses those of another size") {
  Sketch first(100, 10), second(100, 10);
  for (int64_t id = 0; id < 500; ++id) first.add({{id * id, 3}});
  second.load(first.data(), first.bytes());
  CHECK(std::equal(first.data(), first.data() + first.bytes(), second.data()));
  CHECK(second.count(499 * 499) >= 3);
  second.clear();
  CHECK(second.count(499 * 499) == 0);
  CHECK_THROWS(std::invalid_argument, second.load(first.data(), 17), "a sketch of 17 bytes");
}

}  // namespace
}  // namespace hybridrec
