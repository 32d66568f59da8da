#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "exact_sum.h"

namespace hybridrec {
namespace {

double sum(const std::vector<double>& terms) {
  ExactSum sum;
  for (double term : terms) sum.add(term);
  return sum.value();
}

TEST("a sum of one is that one, from the smallest to the largest") {
  for (double x : {0.0, 5e-324, 1e-310, 2.2250738585072014e-308, 1e-30, 1.0, 3.25, 1e30, 1e300, 1.7976931348623157e308})
    CHECK(sum({x}) == x);
}

TEST("a sum is the same in every order and however it is parted, and close to the true one") {
  std::mt19937_64 random(1);
  std::vector<double> terms;
  long double truth = 0;
  for (int i = 0; i < 10'000; ++i) {
    terms.push_back(std::ldexp(static_cast<double>(random() >> 11), static_cast<int>(random() % 120) - 90));
    truth += terms.back();
  }
  const double first = sum(terms);
  CHECK(std::fabs(first - static_cast<double>(truth)) <= 4e-16 * first);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    const auto cut = terms.begin() + static_cast<int64_t>(random() % terms.size());
    ExactSum left, right;
    for (auto i = terms.begin(); i != cut; ++i) left.add(*i);
    for (auto i = cut; i != terms.end(); ++i) right.add(*i);
    left.add(right);
    CHECK(sum(terms) == first && left.value() == first);
  }
}

}  // namespace
}  // namespace hybridrec
