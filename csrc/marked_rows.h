// The rows of a fixed table that a batch asks for, a bit for each row of the table. The rank of a row among them is a count
// of bits, so that an id costs neither a search nor a branch: those of a hash go ways that no processor can guess.
#pragma once

#include <cstdint>
#include <vector>

namespace hybridrec {

class MarkedRows {
 public:
  // Whether so many ids are worth a look at the bits of all rows; with fewer, a hash is quicker.
  static bool suits(int64_t rows, int64_t ids) { return rows >= 0 && rows <= kRowsPerId * ids; }

  explicit MarkedRows(int64_t rows);  // less than 2^32

  // Writes those of n ids that were not marked before to `fresh`, which has room for n, and returns how many they are. Ids
  // outside the table are none of them.
  int64_t mark(const int64_t* ids, int64_t n, int64_t* fresh);

  void count();  // once all are marked; then rows have ranks

  void rank(const int64_t* ids, int64_t n, uint32_t* out) const;  // of ids that are marked
  // Writes by_rank[rank] for each id. Those outside the table have the rank that follows the last one.
  void find(const int64_t* ids, int64_t n, const int64_t* by_rank, int64_t* out) const;

 private:
  static constexpr int64_t kRowsPerId = 64;

  uint64_t rows_;
  std::vector<uint64_t> bits_;    // one more than there are rows: that of ids outside is set from the start
  std::vector<uint32_t> before_;  // per word: how many are marked in those before it
};

}  // namespace hybridrec
