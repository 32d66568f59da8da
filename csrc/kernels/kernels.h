// The loops over rows, compiled once per instruction set and chosen when the library is first used. Each works on one
// task; who splits the work into tasks and runs them on the thread pool is in lookup.cpp, row_update.cpp and pair_dots.cpp.
#pragma once

#include <cstdint>

#include "../exact_sum.h"
#include "../rows.h"
#include "../simd.h"

namespace hybridrec {

enum class Combiner { Sum, Mean, Sqrtn, Max, None };

// Ids of one feature as bags: offsets, or a fixed number per bag.
struct Bags {
  const uint32_t* slots;
  int64_t ids;              // of all bags
  int64_t bags;
  const int64_t* offsets;   // [bags + 1], or null
  int64_t hotness;          // ids per bag where offsets is null
  const float* weights;     // [ids], or null
  Combiner combiner;
  int group;                // slots per id (multi-hash); divisors count ids

  HYBRIDREC_INLINE int64_t start(int64_t bag) const { return offsets ? offsets[bag] : bag * hotness; }
};

// What the sum of the bag of ids [start, stop) is multiplied by; 0 where there is nothing to divide by.
HYBRIDREC_INLINE float bag_scale(const Bags& bags, int64_t start, int64_t stop) {
  if (bags.combiner != Combiner::Mean && bags.combiner != Combiner::Sqrtn) return 1;
  float total = 0;
  if (bags.weights == nullptr) total = static_cast<float>(stop - start);
  else if (bags.combiner == Combiner::Mean)
    for (int64_t i = start; i < stop; ++i) total += bags.weights[i];
  else
    for (int64_t i = start; i < stop; ++i) total += bags.weights[i] * bags.weights[i];
  total /= static_cast<float>(bags.group);
  const float divisor = bags.combiner == Combiner::Mean ? total : __builtin_sqrtf(total);
  return divisor == 0 ? 0 : 1 / divisor;
}

struct Pool {
  RowSpec spec;
  Column rows;
  Bags bags;
  float* out;           // [bags, stride]
  int64_t stride;       // floats
  int32_t* winners;     // [bags, dim] of a max: which id of the bag won the column, -1 for none
  bool stream;          // write past the caches: the output is too large to be found there later
};

// What one feature of one backward call adds to a table's gradient. An occurrence is a bag, or an id where ids of a
// bag differ in their share (weights, winners); then bag_of and share say whose gradient it takes, and how much.
struct Source {
  const float* grad;      // [bags, stride]
  int64_t stride;
  const uint32_t* bag_of; // [occurrences], or null: the occurrence is the bag
  const float* share;     // [occurrences], or null: 1
  const int32_t* winners; // [bags, dim] of a max, or null
  const int32_t* place;   // [occurrences]: position of the id in its bag, for winners
};

enum class Rule { Sgd, Momentum, Nesterov, Adagrad, RowWiseAdagrad, Adam, Ftrl };

struct RowStep {
  Rule rule;
  double lr, momentum, weight_decay, eps, beta1, beta2, l1, l2, beta, bound, clip, grad_scale;
  uint32_t step;
};

// What the columns of a row add up to, g being its summed gradient and w its weights: the squares of g, NaN where g is not
// finite; where a rule wants them, also g times w and the squares of w. Columns in several places add up to the whole row.
struct RowSums {
  double gradient, product, weight;
};

// Rows and their occurrences: row r is in slots[r], and occurrences [starts[r], starts[r + 1]) are its own, each
// `what & mask` = source << shift | occurrence of that source.
struct Update {
  RowSpec spec;
  Column rows;
  Column state[2];
  RowStep step;
  const Source* sources;
  int shift;
  bool plain;         // every occurrence is a bag, and its share 1
  bool some_winners;  // of a source
  int64_t row_count, count;
  const uint32_t *slots, *starts, *what;
  uint32_t mask;
  int64_t (*id_of)(const void* table, uint32_t slot);  // null: as the spec has it
  const void* table;
  float* scratch;  // [2 dim]
  ExactSum* norm;  // unless null: add up the squares of the summed gradients, and change nothing
  // results, added to
  int64_t updated, not_finite;
  RowSums* measured = nullptr;     // unless null: gets the sums of each row, and nothing changes
  const RowSums* whole = nullptr;  // unless null: the sums of each row over all `whole_dim` columns of its table
  int64_t whole_dim = 0;
};

// Vectors of the rows of a batch whose pairs are multiplied: that of `below`, unless it is null, then those of `fields`.
struct PairDots {
  const float* below;      // [rows, dim]
  int64_t below_stride;    // floats
  const float* fields;     // [rows, fields_count * dim]
  int64_t fields_stride;
  int64_t fields_count, dim;

  int64_t vectors() const { return fields_count + (below ? 1 : 0); }
};

struct Kernels {
  const char* name;
  void (*init_rows)(const RowSpec&, Column rows, const uint32_t* slots, const int64_t* ids, int64_t n);
  void (*gather)(const RowSpec&, Column rows, const uint32_t* slots, int64_t n, float* out);
  void (*scatter)(const RowSpec&, Column rows, const uint32_t* slots, int64_t n, const float* in);
  void (*pool)(const Pool&, int64_t first_bag, int64_t last_bag);
  // Gradient of the weights of bags [first, last): grad and out are [bags, stride] as in the forward call.
  void (*weight_gradient)(const Pool&, const float* grad, int64_t grad_stride, int64_t first, int64_t last, float* result);
  // Adds to the rows of bags [first, last), which are floats, `factor` times the gradient that each has a share in.
  void (*add_gradient)(const Pool&, const float* grad, int64_t grad_stride, float factor, int64_t first, int64_t last);
  void (*update)(Update&);
  // Of rows [first, last), as pair_dots.h has it; scratch is for a column block of all vectors.
  void (*pair_dots)(const PairDots&, int64_t first, int64_t last, float* scratch, float* out, int64_t width);
  void (*pair_dots_gradient)(const PairDots&, int64_t first, int64_t last, float* scratch, const float* grad,
                             int64_t grad_stride, float* of_below, float* of_fields);
};

const Kernels& kernels();

namespace generic { extern const Kernels kTable; }
namespace avx2 { extern const Kernels kTable; }
namespace avx512 { extern const Kernels kTable; }

}  // namespace hybridrec
