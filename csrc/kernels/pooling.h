// Rows to pooled bags, and the gradient of the weights of a bag. A bag's sum stays in registers, kWide vectors of
// columns at a time; the rows of ids a little ahead are on their way from memory meanwhile.

constexpr int kWide = 8;
template <int N>
constexpr int64_t kAhead = N == 1 ? 32 : 16;  // ids

template <RowType T, int N, bool kWeighted>
HYBRIDREC_INLINE void sum_columns(const Pool& p, int64_t start, int64_t stop, int64_t at, int rest, float* out) {
  Vec sum[N];
  for (int v = 0; v < N; ++v) sum[v] = Vec::zero();
  const int64_t end = p.bags.ids - 1;
  for (int64_t i = start; i < stop; ++i) {
    const uint32_t ahead = p.bags.slots[i + kAhead<N> < end ? i + kAhead<N> : end];
    if (ahead != kMissing) prefetch(p.rows.at(ahead) + at * static_cast<int64_t>(sizeof(typename Element<T>::Type)), N * Vec::kLanes * static_cast<int64_t>(sizeof(typename Element<T>::Type)));
    if (p.bags.slots[i] == kMissing) continue;
    const uint8_t* row = p.rows.at(p.bags.slots[i]);
    const Vec weight = Vec::all(kWeighted ? p.bags.weights[i] : 1);
    for (int v = 0; v < N; ++v) {
      const int64_t c = at + v * Vec::kLanes;
      const Vec x = v + 1 < N || rest == Vec::kLanes ? load_row<T>(row, c, Whole{}) : load_row<T>(row, c, Rest{rest});
      sum[v] = kWeighted ? sum[v].fma(x, weight) : sum[v] + x;
    }
  }
  const float scale = bag_scale(p.bags, start, stop);
  const bool stream = p.stream && rest == Vec::kLanes;
  for (int v = 0; v < N; ++v) {
    const Vec y = scale == 1 ? sum[v] : sum[v] * Vec::all(scale);
    float* to = out + at + v * Vec::kLanes;
    if (stream) y.stream(to);
    else if (v + 1 < N || rest == Vec::kLanes) y.store(to);
    else y.store(to, rest);
  }
}

template <RowType T, bool kWeighted, int N>
void sum_bags(const Pool& p, int64_t first, int64_t last, int64_t at, int rest) {
  for (int64_t bag = first; bag < last; ++bag)
    sum_columns<T, N, kWeighted>(p, p.bags.start(bag), p.bags.start(bag + 1), at, rest, p.out + bag * p.stride);
}

template <RowType T, bool kWeighted>
void sum_all(const Pool& p, int64_t first, int64_t last) {
  using Loop = void (*)(const Pool&, int64_t, int64_t, int64_t, int);
  static constexpr Loop kLoops[kWide] = {sum_bags<T, kWeighted, 1>, sum_bags<T, kWeighted, 2>, sum_bags<T, kWeighted, 3>,
                                         sum_bags<T, kWeighted, 4>, sum_bags<T, kWeighted, 5>, sum_bags<T, kWeighted, 6>,
                                         sum_bags<T, kWeighted, 7>, sum_bags<T, kWeighted, 8>};
  for (int64_t at = 0; at < p.spec.dim; at += kWide * Vec::kLanes) {
    const int64_t left = p.spec.dim - at;
    const int n = left >= kWide * Vec::kLanes ? kWide : static_cast<int>((left + Vec::kLanes - 1) / Vec::kLanes);
    const int64_t rest = left - (n - 1) * Vec::kLanes;
    kLoops[n - 1](p, first, last, at, rest < Vec::kLanes ? static_cast<int>(rest) : Vec::kLanes);
  }
}

inline float element(const RowSpec& spec, const uint8_t* row, int64_t c) {
  if (spec.type == RowType::F32) return reinterpret_cast<const float*>(row)[c];
  const uint16_t half = reinterpret_cast<const uint16_t*>(row)[c];
  return spec.type == RowType::F16 ? from_f16(half) : from_bf16(half);
}

void max_bags(const Pool& p, int64_t first, int64_t last) {
  const int64_t dim = p.spec.dim;
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t start = p.bags.start(bag), stop = p.bags.start(bag + 1);
    float* out = p.out + bag * p.stride;
    int32_t* won = p.winners + bag * dim;
    for (int64_t c = 0; c < dim; ++c) out[c] = 0, won[c] = -1;
    for (int64_t i = start; i < stop; ++i) {
      const uint8_t* row = p.bags.slots[i] == kMissing ? nullptr : p.rows.at(p.bags.slots[i]);
      const float weight = p.bags.weights ? p.bags.weights[i] : 1;
      for (int64_t c = 0; c < dim; ++c) {
        const float x = row ? weight * element(p.spec, row, c) : 0;
        if (i == start || x > out[c] || (x != x && out[c] == out[c])) out[c] = x, won[c] = static_cast<int32_t>(i - start);
      }
    }
  }
}

void pool(const Pool& p, int64_t first, int64_t last) {
  if (p.bags.combiner == Combiner::Max) return max_bags(p, first, last);
  using Loop = void (*)(const Pool&, int64_t, int64_t);
  static constexpr Loop kLoops[3][2] = {{sum_all<RowType::F32, false>, sum_all<RowType::F32, true>},
                                        {sum_all<RowType::F16, false>, sum_all<RowType::F16, true>},
                                        {sum_all<RowType::BF16, false>, sum_all<RowType::BF16, true>}};
  kLoops[static_cast<int>(p.spec.type)][p.bags.weights != nullptr](p, first, last);
}

inline double dot_row(const RowSpec& spec, const uint8_t* row, const float* grad) {
  double sum = 0;
  for (int64_t c = 0; c < spec.dim; ++c) sum += static_cast<double>(grad[c]) * element(spec, row, c);
  return sum;
}

// With s = sum of w x and d the divisor, out = s / d:
//   sum: g.x_i    mean: (g.x_i - g.out) / d    sqrtn: g.x_i / d - g.out w_i / d^2    max: over the columns i won
void weight_gradient(const Pool& p, const float* grad, int64_t grad_stride, int64_t first, int64_t last, float* result) {
  const int64_t dim = p.spec.dim;
  const Combiner combiner = p.bags.combiner;
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t start = p.bags.start(bag), stop = p.bags.start(bag + 1);
    const float* g = grad + bag * grad_stride;
    const bool divides = combiner == Combiner::Mean || combiner == Combiner::Sqrtn;
    const double scale = bag_scale(p.bags, start, stop);
    double along_out = 0;
    if (divides)
      for (int64_t c = 0; c < dim; ++c) along_out += static_cast<double>(g[c]) * p.out[bag * p.stride + c];
    for (int64_t i = start; i < stop; ++i) {
      const bool missing = p.bags.slots[i] == kMissing;
      const uint8_t* row = missing ? nullptr : p.rows.at(p.bags.slots[i]);
      double sum = 0;
      if (missing) sum = 0;
      else if (combiner != Combiner::Max) sum = dot_row(p.spec, row, g);
      else
        for (int64_t c = 0; c < dim; ++c)
          if (p.winners[bag * dim + c] == i - start) sum += static_cast<double>(g[c]) * element(p.spec, row, c);
      const double group = p.bags.group;  // each id stands for `group` slots, all of its weight
      if (combiner == Combiner::Mean) sum = scale * (sum - along_out / group);
      if (combiner == Combiner::Sqrtn) sum = scale * (sum - along_out * scale * p.bags.weights[i] / group);
      result[i] = static_cast<float>(sum);
    }
  }
}

constexpr int64_t kGradsSoon = 12;  // bags

void add_gradient(const Pool& p, const float* grad, int64_t grad_stride, float factor, int64_t first, int64_t last) {
  const int64_t dim = p.spec.dim, end = p.bags.ids - 1;
  for (int64_t bag = first; bag < last; ++bag) {
    const int64_t start = p.bags.start(bag), stop = p.bags.start(bag + 1);
    const float* g = grad + bag * grad_stride;
    if (bag + kGradsSoon < last) prefetch(g + kGradsSoon * grad_stride, 4 * dim);  // too far apart for the processor to guess
    const int32_t* won = p.winners ? p.winners + bag * dim : nullptr;
    const float scale = factor * bag_scale(p.bags, start, stop);
    for (int64_t i = start; i < stop; ++i) {
      const uint32_t ahead = p.bags.slots[i + kAhead<1> < end ? i + kAhead<1> : end];
      if (ahead != kMissing) prefetch_to_write(p.rows.at(ahead), 4 * dim);
      if (p.bags.slots[i] == kMissing) continue;
      auto* row = reinterpret_cast<float*>(p.rows.at(p.bags.slots[i]));
      const float share = p.bags.weights ? scale * p.bags.weights[i] : scale;
      if (won == nullptr)
        along(dim, [&](int64_t c, auto lanes) { store(load(row + c, lanes).fma(load(g + c, lanes), Vec::all(share)), row + c, lanes); });
      else
        for (int64_t c = 0; c < dim; ++c)
          if (won[c] == i - start) row[c] += share * g[c];
    }
  }
}

void gather(const RowSpec& spec, Column rows, const uint32_t* slots, int64_t n, float* out) {
  const Bags bags{slots, n, n, nullptr, 1, nullptr, Combiner::Sum, 1};
  pool(Pool{spec, rows, bags, out, spec.dim, nullptr, false}, 0, n);
}

void scatter(const RowSpec& spec, Column rows, const uint32_t* slots, int64_t n, const float* in) {
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* row = rows.at(slots[i]);
    for (int64_t c = 0; c < spec.dim; ++c) put(spec, row, c, in[i * spec.dim + c]);
  }
}
