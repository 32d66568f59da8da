#include "vocabulary.h"

#include <atomic>
#include <limits>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.h"

namespace hybridrec {
namespace {

std::vector<int64_t> look(Vocabulary& vocabulary, const std::vector<int64_t>& ids, bool learn) {
  std::vector<int64_t> out(ids.size(), -7);
  vocabulary.lookup(ids.data(), static_cast<int64_t>(ids.size()), out.data(), learn);
  return out;
}

TEST("tokens get indices from 1 in order of first appearance, and 0 beyond the size") {
  Vocabulary vocabulary(3);
  const int64_t lowest = std::numeric_limits<int64_t>::min();
  CHECK((look(vocabulary, {0, -1, 0, lowest, 5, -1}, true) == std::vector<int64_t>{1, 2, 1, 3, 0, 2}));
  CHECK((look(vocabulary, {5, lowest, 6}, true) == std::vector<int64_t>{0, 3, 0}));
  CHECK((vocabulary.keys() == std::vector<int64_t>{0, -1, lowest}));
  CHECK((vocabulary.counts() == std::vector<int64_t>{3, 2, 2, 2}));
  CHECK(vocabulary.size() == 3);
}

TEST("a vocabulary that does not learn neither grows nor counts") {
  Vocabulary vocabulary(10);
  look(vocabulary, {4, 5}, true);
  CHECK((look(vocabulary, {5, 6, 4}, false) == std::vector<int64_t>{2, 0, 1}));
  CHECK(vocabulary.size() == 2);
  CHECK((vocabulary.counts() == std::vector<int64_t>{0, 1, 1}));
}

TEST("a vocabulary agrees with a map over many random batches") {
  Vocabulary vocabulary(30000);
  std::unordered_map<int64_t, int64_t> map;
  std::vector<int64_t> counts(1, 0);
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    std::vector<int64_t> ids(2000), expected;
    for (int64_t& id : ids) {
      id = static_cast<int64_t>(random() % 50000) * 1000003;
      if (map.count(id) == 0 && map.size() < 30000) {
        map.emplace(id, static_cast<int64_t>(map.size()) + 1);
        counts.push_back(0);
      }
      expected.push_back(map.count(id) ? map[id] : 0);
      ++counts[expected.back()];
    }
    CHECK(look(vocabulary, ids, true) == expected);
  }
  CHECK(vocabulary.size() == 30000);
  CHECK(vocabulary.counts() == counts);
}

TEST("a vocabulary comes back from its keys and counts, and goes on") {
  Vocabulary first(5), second(5);
  look(first, {9, 8, 9}, true);
  look(second, {1, 2, 3}, true);
  const auto keys = first.keys(), counts = first.counts();
  second.load(keys.data(), 2, counts.data());
  CHECK(second.keys() == keys);
  CHECK(second.counts() == counts);
  CHECK((look(second, {1, 9, 8}, true) == std::vector<int64_t>{3, 1, 2}));
}

TEST("a vocabulary refuses tokens that are too many or there twice, and stays as it was") {
  Vocabulary vocabulary(2);
  look(vocabulary, {7}, true);
  const int64_t many[] = {1, 2, 3}, twice[] = {4, 4}, counts[] = {0, 0, 0, 0};
  CHECK_THROWS(std::invalid_argument, vocabulary.load(many, 3, counts), "3 tokens do not fit a vocabulary of 2");
  CHECK_THROWS(std::invalid_argument, vocabulary.load(twice, 2, counts), "token 4 is there twice");
  CHECK((vocabulary.keys() == std::vector<int64_t>{7}));
  CHECK_THROWS(std::invalid_argument, Vocabulary(0), "not 0");
}

TEST("threads that learn and look up the same ids at once agree on every index") {
  Vocabulary vocabulary(4000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int round = 0; round < 100; ++round) {
        std::vector<int64_t> ids(100);
        for (int64_t& id : ids) id = static_cast<int64_t>(random() % 5000);
        const auto found = look(vocabulary, ids, t % 2 == 0), again = look(vocabulary, ids, false);
        for (size_t i = 0; i < ids.size(); ++i) wrong += found[i] != 0 && found[i] != again[i];
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
  const auto keys = vocabulary.keys();
  const auto indices = look(vocabulary, keys, false);
  for (size_t i = 0; i < keys.size(); ++i) CHECK(indices[i] == static_cast<int64_t>(i) + 1);
}

}  // namespace
}  // namespace hybridrec
