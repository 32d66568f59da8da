// Occurrences sorted by slot to updated rows: the gradients of a slot's occurrences are summed in registers, and the
// row takes its step at once, so that no buffer of row gradients is written. Rows, state and gradients of occurrences
// a little ahead are on their way from memory meanwhile.

// How far ahead, in occurrences and in rows: more lines than a core can wait for at once would only delay each other.
template <int N>
constexpr int64_t kGradsAhead = N == 1 ? 24 : N <= 4 ? 12 : 10;
template <int N>
constexpr int64_t kRowsAhead = N == 1 ? 12 : 8;

struct Occurrence {
  const float* grad;
  float share;
  const int32_t* winners;
  int32_t place;
};

HYBRIDREC_INLINE Occurrence occurrence(const Update& u, int64_t number) {
  const uint64_t what = u.what[number] & u.mask;
  const Source& source = u.sources[what >> u.shift];
  const uint64_t at = what & ((uint64_t{1} << u.shift) - 1);
  const uint64_t bag = source.bag_of ? source.bag_of[at] : at;
  return {source.grad + static_cast<int64_t>(bag) * source.stride, source.share ? source.share[at] : 1,
          source.winners ? source.winners + static_cast<int64_t>(bag) * u.spec.dim : nullptr,
          source.winners ? source.place[at] : 0};
}

// The gradient of an occurrence of a source without bags, shares or winners of its own.
HYBRIDREC_INLINE const float* plain_grad(const Update& u, int64_t number) {
  const uint64_t what = u.what[number] & u.mask;
  const Source& source = u.sources[what >> u.shift];
  return source.grad + static_cast<int64_t>(what & ((uint64_t{1} << u.shift) - 1)) * source.stride;
}

HYBRIDREC_INLINE void fetch_row(const Update& u, uint32_t slot) {
  prefetch_to_write(u.rows.at(slot), u.rows.stride);
  for (const Column& state : u.state)
    if (state.slabs) prefetch_to_write(state.at(slot), state.stride);
}

// N vectors of columns of the summed gradient of occurrences [first, last), into the scratch row.
template <int N, typename Lanes>
inline void sum_columns(const Update& u, int64_t first, int64_t last, int64_t at, Lanes lanes) {
  Vec sum[N];
  for (int v = 0; v < N; ++v) sum[v] = Vec::zero();
  for (int64_t i = first; i < last; ++i) {
    if (i + kGradsAhead<N> < u.count) prefetch(occurrence(u, i + kGradsAhead<N>).grad + at, N * Vec::kLanes * 4);
    const Occurrence o = occurrence(u, i);
    for (int v = 0; v < N; ++v) sum[v] = sum[v].fma(load(o.grad + at + v * Vec::kLanes, lanes), Vec::all(o.share));
  }
  for (int v = 0; v < N; ++v) store(sum[v], u.scratch + at + v * Vec::kLanes, lanes);
}

// Where some occurrences are of a maximum: they give only the columns that they won.
inline void sum_with_winners(const Update& u, int64_t first, int64_t last) {
  for (int64_t c = 0; c < u.spec.dim; ++c) u.scratch[c] = 0;
  for (int64_t i = first; i < last; ++i) {
    const Occurrence o = occurrence(u, i);
    for (int64_t c = 0; c < u.spec.dim; ++c)
      if (o.winners == nullptr || o.winners[c] == o.place) u.scratch[c] += o.share * o.grad[c];
  }
}

// The summed gradient of occurrences [first, last): in the scratch row, or the only occurrence's own.
inline const float* summed(const Update& u, int64_t first, int64_t last) {
  if (u.some_winners) {
    sum_with_winners(u, first, last);
    return u.scratch;
  }
  const Occurrence only = occurrence(u, first);
  if (last - first == 1 && only.share == 1) return only.grad;
  int64_t at = 0;
  const auto whole = [&](int vectors) { return u.spec.dim - at >= vectors * Vec::kLanes; };
  for (; whole(kWide); at += kWide * Vec::kLanes) sum_columns<kWide>(u, first, last, at, Whole{});
  for (; whole(2); at += 2 * Vec::kLanes) sum_columns<2>(u, first, last, at, Whole{});
  for (; whole(1); at += Vec::kLanes) sum_columns<1>(u, first, last, at, Whole{});
  if (at < u.spec.dim) sum_columns<1>(u, first, last, at, Rest{static_cast<int>(u.spec.dim - at)});
  return u.scratch;
}

inline double squares_of(const float* g, int64_t dim) {
  Vec sum = Vec::zero();
  along(dim, [&](int64_t i, auto lanes) {
    const Vec x = load(g + i, lanes);
    sum = sum.fma(x, x);
  });
  return sum.sum();
}

// Whether the gradient is finite once it is scaled; `squares` as floats gave it, made exact where they overflowed.
inline bool usable(const float* g, int64_t dim, double scale, double& squares) {
  if (!(squares - squares == 0)) {
    squares = 0;
    for (int64_t c = 0; c < dim; ++c) squares += static_cast<double>(g[c]) * g[c];
  }
  if (squares * scale * scale < 1e76) return true;  // each element is below 1e38
  for (int64_t c = 0; c < dim; ++c)
    if ((bits_of(g[c] * static_cast<float>(scale)) & 0x7F800000) == 0x7F800000) return false;
  return true;
}

// The numbers of a step as vectors, made once per task.
struct StepVectors {
  Vec lr, decay, momentum, eps, rest1, rest2, l1, minus_l1, l2, beta, bound, under, tiny;

  explicit StepVectors(const RowStep& s)
      : lr(all(s.lr)), decay(all(s.weight_decay)), momentum(all(s.momentum)), eps(all(s.eps)), rest1(all(1 - s.beta1)),
        rest2(all(1 - s.beta2)), l1(all(s.l1)), minus_l1(all(-s.l1)), l2(all(s.l2)), beta(all(s.beta)),
        bound(all(s.bound)), under(all(-s.bound)), tiny(all(1.17549435e-38)) {}

  static Vec all(double x) { return Vec::all(static_cast<float>(x)); }
};

// Columns of a row after the step, given the weights w and the gradient g; state is read and written in place. `rate`
// is the row's own learning rate under row-wise Adagrad.
template <Rule R, typename Lanes>
HYBRIDREC_INLINE Vec stepped(const StepVectors& s, Vec rate, Vec w, Vec g, float* first, float* second, Lanes lanes) {
  if constexpr (R == Rule::Sgd || R == Rule::RowWiseAdagrad) w = w - rate * g;
  if constexpr (R == Rule::Momentum || R == Rule::Nesterov) {
    const Vec buffer = g.fma(s.momentum, load(first, lanes));
    store(buffer, first, lanes);
    w = w - s.lr * (R == Rule::Nesterov ? g.fma(s.momentum, buffer) : buffer);
  }
  if constexpr (R == Rule::Adagrad) {
    const Vec sum = load(first, lanes).fma(g, g);
    store(sum, first, lanes);
    w = w - s.lr * g / (sum.sqrt() + s.eps);
  }
  if constexpr (R == Rule::Adam) {
    const Vec m = load(first, lanes), v = load(second, lanes);
    const Vec away = (Vec::zero() - v).fma(g, g);  // g * g - v, which compilers round once here and twice there
    const Vec m1 = m.fma(g - m, s.rest1), v1 = v.fma(away, s.rest2);
    store(m1, first, lanes);
    store(v1, second, lanes);
    w = w - s.lr * m1 / (v1.sqrt() + s.eps);
  }
  if constexpr (R == Rule::Ftrl) {
    const Vec z = load(first, lanes), n = load(second, lanes), n1 = n.fma(g, g), root = n1.sqrt();
    const Vec z1 = z + g - (root - n.sqrt()) / s.lr * w;
    store(z1, first, lanes);
    store(n1, second, lanes);
    const Vec shrunk = z1 - z1.min(s.l1).max(s.minus_l1);  // z - sign(z) l1, and 0 within l1 of 0
    w = Vec::zero() - shrunk / s.tiny.max((s.beta + root) / s.lr + s.l2);  // 0 where no gradient was ever seen
  }
  return s.under.max(s.bound.min(w));  // in this order NaN stays NaN
}

// Adds a row's mean square to its one number of state; the learning rate that comes of it.
HYBRIDREC_INLINE Vec rowwise_rate(const Update& u, float* sum, double mean) {
  *sum += static_cast<float>(mean);
  return Vec::all(static_cast<float>(u.step.lr) / (__builtin_sqrtf(*sum) + static_cast<float>(u.step.eps)));
}

HYBRIDREC_INLINE float* state_at(const Column& column, uint32_t slot) {
  return column.slabs ? reinterpret_cast<float*>(column.at(slot)) : nullptr;
}

// The mean square of a gradient with its factor and weight decay, given the sum of its squares before.
template <RowType T>
double mean_square(const Update& u, const StepVectors& s, uint32_t slot, const float* grad, float factor, double squares) {
  const int64_t dim = u.spec.dim;
  if (u.step.weight_decay == 0) return squares * (static_cast<double>(factor) * factor) / static_cast<double>(dim);
  const uint8_t* row = u.rows.at(slot);
  const Vec scale = Vec::all(factor);
  Vec sum = Vec::zero();
  along(dim, [&](int64_t i, auto lanes) {
    const Vec g = (load(grad + i, lanes) * scale).fma(s.decay, load_row<T>(row, i, lanes));
    sum = sum.fma(g, g);
  });
  return sum.sum() / static_cast<double>(dim);
}

// The same of a row whose other columns are elsewhere.
inline double mean_square(const Update& u, const RowSums& whole, float factor) {
  const double f = factor, decay = u.step.weight_decay;
  const double sum = f * f * whole.gradient + 2 * f * decay * whole.product + decay * decay * whole.weight;
  return sum > 0 ? sum / static_cast<double>(u.whole_dim) : 0;  // rounding may take it below
}

// One row's step, its gradient in memory. `factor` multiplies it; `mean` is the mean square of what it then is.
template <Rule R, RowType T>
void take_step(const Update& u, const StepVectors& s, uint32_t slot, const float* grad, float factor, double mean) {
  const int64_t dim = u.spec.dim;
  uint8_t* row = u.rows.at(slot);
  float *first = state_at(u.state[0], slot), *second = state_at(u.state[1], slot);
  float* out = T == RowType::F32 ? reinterpret_cast<float*>(row) : u.scratch + dim;
  const Vec scale = Vec::all(factor);
  const auto gradient = [&](int64_t i, auto lanes, Vec w) { return (load(grad + i, lanes) * scale).fma(s.decay, w); };
  const Vec rate = R == Rule::RowWiseAdagrad ? rowwise_rate(u, first, mean) : s.lr;
  along(dim, [&](int64_t i, auto lanes) {
    const Vec w = load_row<T>(row, i, lanes);
    store(stepped<R>(s, rate, w, gradient(i, lanes, w), first + i, second + i, lanes), out + i, lanes);
  });
  if constexpr (T != RowType::F32) {
    const int64_t id = u.id_of ? u.id_of(u.table, slot) : u.spec.id_of(slot);
    store_rounded(u.spec, row, out, id, u.step.step);
  }
}

// What a summed gradient is multiplied by, given the sum of its squares.
HYBRIDREC_INLINE float factor_of(const RowStep& s, double squares) {
  if (squares * s.grad_scale * s.grad_scale <= s.clip * s.clip) return static_cast<float>(s.grad_scale);
  return static_cast<float>(s.clip / __builtin_sqrt(squares));
}

// Any row, any gradient.
template <Rule R, RowType T>
void update_row(Update& u, const StepVectors& s, int64_t row) {
  const float* grad = summed(u, u.starts[row], u.starts[row + 1]);
  const uint32_t slot = u.slots[row];
  double squares = u.whole ? u.whole[row].gradient : squares_of(grad, u.spec.dim);
  const bool finite = u.whole ? squares - squares == 0 : usable(grad, u.spec.dim, u.step.grad_scale, squares);
  if (!finite) {
    ++u.not_finite;
    return;
  }
  const float factor = factor_of(u.step, squares);
  ++u.updated;
  if (u.norm) {
    u.norm->add(squares * factor * factor);
    return;
  }
  double mean = 0;
  if constexpr (R == Rule::RowWiseAdagrad)
    mean = u.whole ? mean_square(u, u.whole[row], factor) : mean_square<T>(u, s, slot, grad, factor, squares);
  take_step<R, T>(u, s, slot, grad, factor, mean);
}

// What the columns of each row add up to, for those who have the other columns.
template <RowType T>
void measure(const Update& u) {
  const int64_t dim = u.spec.dim;
  for (int64_t row = 0; row < u.row_count; ++row) {
    const float* grad = summed(u, u.starts[row], u.starts[row + 1]);
    RowSums& out = u.measured[row];
    out = {squares_of(grad, dim), 0, 0};
    if (!usable(grad, dim, u.step.grad_scale, out.gradient)) out.gradient = __builtin_nan("");
    if (u.step.rule != Rule::RowWiseAdagrad || u.step.weight_decay == 0) continue;
    const uint8_t* from = u.rows.at(u.slots[row]);
    float* weights = u.scratch + dim;
    along(dim, [&](int64_t i, auto lanes) { store(load_row<T>(from, i, lanes), weights + i, lanes); });
    for (int64_t c = 0; c < dim; ++c) {
      out.product += static_cast<double>(grad[c]) * weights[c];
      out.weight += static_cast<double>(weights[c]) * weights[c];
    }
  }
}

template <Rule R, RowType T>
void update_rows(Update& u) {
  const StepVectors s(u.step);
  for (int64_t row = 0; row < u.row_count; ++row) {
    if (row + kRowsAhead<kWide> < u.row_count) fetch_row(u, u.slots[row + kRowsAhead<kWide>]);
    update_row<R, T>(u, s, row);
  }
}

// Rows of N vectors of floats, the last one Whole or the Rest of them, with plain gradients: all of it stays in registers.
template <Rule R, int N, typename Last>
void update_vectors(Update& u, Last last) {
  const StepVectors s(u.step);
  const bool plain = u.step.weight_decay == 0 && u.step.grad_scale == 1;
  for (int64_t row = 0; row < u.row_count; ++row) {
    if (row + kRowsAhead<N> < u.row_count) fetch_row(u, u.slots[row + kRowsAhead<N>]);
    Vec g[N];
    for (int v = 0; v < N; ++v) g[v] = Vec::zero();
    for (int64_t i = u.starts[row]; i < u.starts[row + 1]; ++i) {
      if (i + kGradsAhead<N> < u.count) prefetch(plain_grad(u, i + kGradsAhead<N>), N * Vec::kLanes * 4);
      const float* from = plain_grad(u, i);
      for (int v = 0; v + 1 < N; ++v) g[v] = g[v] + Vec::load(from + v * Vec::kLanes);
      g[N - 1] = g[N - 1] + load(from + (N - 1) * Vec::kLanes, last);
    }
    Vec sum = g[0] * g[0];
    for (int v = 1; v < N; ++v) sum = sum.fma(g[v], g[v]);
    const double squares = sum.sum();
    const float factor = plain ? factor_of(u.step, squares) : 0;
    if (!plain || factor != 1 || !(squares - squares == 0) || u.norm) {
      update_row<R, RowType::F32>(u, s, row);
      continue;
    }
    ++u.updated;
    const uint32_t slot = u.slots[row];
    auto* w = reinterpret_cast<float*>(u.rows.at(slot));
    float *first = state_at(u.state[0], slot), *second = state_at(u.state[1], slot);
    const Vec rate = R == Rule::RowWiseAdagrad ? rowwise_rate(u, first, squares / static_cast<double>(u.spec.dim)) : s.lr;
    const auto step = [&](int v, auto lanes) {
      const int c = v * Vec::kLanes;
      store(stepped<R>(s, rate, load(w + c, lanes), g[v], first + c, second + c, lanes), w + c, lanes);
    };
    for (int v = 0; v + 1 < N; ++v) step(v, Whole{});
    step(N - 1, last);
  }
}

template <Rule R>
void update_type(Update& u) {
  if (u.spec.type == RowType::F16) return update_rows<R, RowType::F16>(u);
  if (u.spec.type == RowType::BF16) return update_rows<R, RowType::BF16>(u);
  const bool plain = u.plain && !u.whole;
  if (plain && u.spec.dim < Vec::kLanes) return update_vectors<R, 1>(u, Rest{static_cast<int>(u.spec.dim)});
  switch (plain ? u.spec.dim : 0) {
    case Vec::kLanes: return update_vectors<R, 1>(u, Whole{});
    case 2 * Vec::kLanes: return update_vectors<R, 2>(u, Whole{});
    case 4 * Vec::kLanes: return update_vectors<R, 4>(u, Whole{});
    case 8 * Vec::kLanes: return update_vectors<R, 8>(u, Whole{});
    default: return update_rows<R, RowType::F32>(u);
  }
}

void update(Update& u) {
  if (u.measured) {
    if (u.spec.type == RowType::F16) return measure<RowType::F16>(u);
    return u.spec.type == RowType::BF16 ? measure<RowType::BF16>(u) : measure<RowType::F32>(u);
  }
  switch (u.step.rule) {
    case Rule::Sgd: return update_type<Rule::Sgd>(u);
    case Rule::Momentum: return update_type<Rule::Momentum>(u);
    case Rule::Nesterov: return update_type<Rule::Nesterov>(u);
    case Rule::Adagrad: return update_type<Rule::Adagrad>(u);
    case Rule::RowWiseAdagrad: return update_type<Rule::RowWiseAdagrad>(u);
    case Rule::Adam: return update_type<Rule::Adam>(u);
    case Rule::Ftrl: return update_type<Rule::Ftrl>(u);
  }
}
