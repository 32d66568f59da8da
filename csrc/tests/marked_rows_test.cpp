#include "marked_rows.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "check.h"

namespace hybridrec {
namespace {

constexpr int64_t kGuard = -7;  // after what is written: nothing may be written there

// What a batch of ids marks, and the ranks that it finds, are what a set of them has.
void check_like_a_set(int64_t rows, const std::vector<int64_t>& ids) {
  MarkedRows marked(rows);
  const auto n = static_cast<int64_t>(ids.size()), half = n / 2;
  std::vector<int64_t> fresh(n + 1, kGuard), expected;
  int64_t found = marked.mark(ids.data(), half, fresh.data());
  found += marked.mark(ids.data() + half, n - half, fresh.data() + found);
  CHECK(fresh[n] == kGuard);
  fresh.resize(found);
  std::set<int64_t> seen;
  for (const int64_t id : ids)
    if (id >= 0 && id < rows && seen.insert(id).second) expected.push_back(id);
  CHECK(fresh == expected);

  marked.count();
  const std::vector<int64_t> sorted(seen.begin(), seen.end());
  const auto rank_of = [&](int64_t id) { return std::lower_bound(sorted.begin(), sorted.end(), id) - sorted.begin(); };
  std::vector<uint32_t> ranks(found);
  marked.rank(fresh.data(), found, ranks.data());
  for (int64_t u = 0; u < found; ++u) CHECK(ranks[u] == rank_of(fresh[u]));

  std::vector<int64_t> by_rank(found + 1), out(n, kGuard);
  for (int64_t r = 0; r <= found; ++r) by_rank[r] = r == found ? -1 : 100 + 3 * r;
  marked.find(ids.data(), n, by_rank.data(), out.data());
  for (int64_t i = 0; i < n; ++i) {
    const bool outside = ids[i] < 0 || ids[i] >= rows;
    CHECK(out[i] == (outside ? -1 : 100 + 3 * rank_of(ids[i])));
  }
}

TEST("marked rows are a set in order of appearance, and every id finds its rank in it") {
  std::mt19937_64 random(5);
  for (const int64_t rows : {1, 2, 63, 64, 65, 128, 1000, 4097})
    for (const int64_t count : {1, 5, 300, 5000}) {
      std::vector<int64_t> ids(count);
      for (int64_t& id : ids) id = static_cast<int64_t>(random() % rows);
      check_like_a_set(rows, ids);
    }
}

TEST("ids outside a table mark nothing and have the rank after the last, whatever their size") {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t rows : {0, 1, 63, 64, 100})
    check_like_a_set(rows, {-1, 0, rows, 0, rows + 63, kLeast, kMost, rows - 1, int64_t{1} << 32, -64});
}

TEST("all rows of a table may be marked, and none") {
  std::vector<int64_t> all(300);
  for (int64_t i = 0; i < 300; ++i) all[i] = 299 - i;
  check_like_a_set(300, all);
  check_like_a_set(300, {});
}

TEST("few ids of a large table, and those of a dynamic one, are not worth their marks") {
  CHECK(MarkedRows::suits(100000, 8192) && MarkedRows::suits(0, 0));
  CHECK(!MarkedRows::suits(100000, 100) && !MarkedRows::suits(-1, 8192));
}

}  // namespace
}  // namespace hybridrec
