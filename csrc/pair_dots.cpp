#include "pair_dots.h"

#include <algorithm>
#include <vector>

#include "thread_pool.h"

namespace hybridrec {

namespace {

constexpr int64_t kRowsPerTask = 256;
constexpr int64_t kMostLanes = 16;

template <typename F>
void by_rows(int64_t rows, int64_t scratch, F work) {
  ThreadPool::instance().run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    std::vector<float> room(scratch);
    const int64_t first = task * kRowsPerTask;
    work(first, std::min(first + kRowsPerTask, rows), room.data());
  });
}

}  // namespace

void pair_dots(const PairDots& p, int64_t rows, float* out, int64_t width) {
  by_rows(rows, p.dim * (p.vectors() + kMostLanes), [&](int64_t first, int64_t last, float* scratch) {
    kernels().pair_dots(p, first, last, scratch, out, width);
  });
}

void pair_dots_gradient(const PairDots& p, int64_t rows, const float* grad, int64_t grad_stride, float* of_below,
                        float* of_fields) {
  by_rows(rows, p.vectors() * kMostLanes, [&](int64_t first, int64_t last, float* scratch) {
    kernels().pair_dots_gradient(p, first, last, scratch, grad, grad_stride, of_below, of_fields);
  });
}

}  // namespace hybridrec
