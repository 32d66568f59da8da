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

inline void add_winners(const Update& u, const Occurrence& o, float* sum) {
  for (int64_t c = 0; c < u.spec.dim; ++c)
    if (o.winners[c] == o.place) sum[c] += o.share * o.grad[c];
}

// Columns [at, at + N vectors) of the summed gradient of items [first, last).
template <int N>
inline void sum_columns(const Update& u, int64_t first, int64_t last, int64_t at, int rest) {
  Vec sum[N];
  for (int v = 0; v < N; ++v) sum[v] = Vec::zero();
  for (int64_t i = first; i < last; ++i) {
    if (i + kGradsAhead<N> < u.count) prefetch(occurrence(u, i + kGradsAhead<N>).grad + at, N * Vec::kLanes * 4);
    const Occurrence o = occurrence(u, i);
    const Vec share = Vec::all(o.share);
    for (int v = 0; v < N; ++v) {
      const float* p = o.grad + at + v * Vec::kLanes;
      sum[v] = sum[v].fma(v + 1 < N || rest == Vec::kLanes ? Vec::load(p) : Vec::load(p, rest), share);
    }
  }
  for (int v = 0; v < N; ++v) {
    float* p = u.scratch + at + v * Vec::kLanes;
    if (v + 1 < N || rest == Vec::kLanes) sum[v].store(p);
    else sum[v].store(p, rest);
  }
}

// The summed gradient of items [first, last): in the scratch row, or the only occurrence's own. N: vectors of a row,
// or kWide and more than one turn.
template <int N>
inline const float* summed(const Update& u, int64_t first, int64_t last) {
  const Occurrence only = occurrence(u, first);
  if (only.winners) {
    for (int64_t c = 0; c < u.spec.dim; ++c) u.scratch[c] = 0;
    for (int64_t i = first; i < last; ++i) {
      const Occurrence o = occurrence(u, i);
      if (o.winners) add_winners(u, o, u.scratch);
      else
        for (int64_t c = 0; c < u.spec.dim; ++c) u.scratch[c] += o.share * o.grad[c];
    }
    return u.scratch;
  }
  if (last - first == 1 && only.share == 1) {
    if (first + kGradsAhead<N> < u.count) prefetch(occurrence(u, first + kGradsAhead<N>).grad, 4 * u.spec.dim);
    return only.grad;
  }
  int64_t at = 0;
  for (; u.spec.dim - at > kWide * Vec::kLanes; at += kWide * Vec::kLanes) sum_columns<kWide>(u, first, last, at, Vec::kLanes);
  const auto left = static_cast<int>(u.spec.dim - at);
  if (N < kWide || left > (N - 1) * Vec::kLanes) sum_columns<N>(u, first, last, at, left - (N - 1) * Vec::kLanes);
  else
    for (; at < u.spec.dim; at += Vec::kLanes) {
      const int64_t rest = u.spec.dim - at;
      sum_columns<1>(u, first, last, at, rest < Vec::kLanes ? static_cast<int>(rest) : Vec::kLanes);
    }
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

inline bool finite(const float* g, int64_t dim) {
  bool all = true;
  for (int64_t c = 0; c < dim; ++c) all &= (bits_of(g[c]) & 0x7F800000) != 0x7F800000;
  return all;
}

// The numbers of a step as vectors, made once per task.
struct StepVectors {
  Vec lr, decay, momentum, eps, rest1, rest2, l1, minus_l1, l2, beta, bound, under;

  explicit StepVectors(const RowStep& s)
      : lr(Vec::all(s.lr)), decay(Vec::all(s.weight_decay)), momentum(Vec::all(s.momentum)), eps(Vec::all(s.eps)),
        rest1(Vec::all(1 - s.beta1)), rest2(Vec::all(1 - s.beta2)), l1(Vec::all(s.l1)), minus_l1(Vec::all(-s.l1)),
        l2(Vec::all(s.l2)), beta(Vec::all(s.beta)), bound(Vec::all(s.bound)), under(Vec::all(-s.bound)) {}
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
    const Vec m1 = m.fma(g - m, s.rest1), v1 = v.fma(g * g - v, s.rest2);
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
    w = Vec::zero() - shrunk / ((s.beta + root) / s.lr + s.l2);
  }
  return w.min(s.bound).max(s.under);
}

// Adds a row's mean square to its one number of state; the learning rate that comes of it.
HYBRIDREC_INLINE Vec rowwise_rate(const Update& u, float* sum, double squares) {
  *sum += static_cast<float>(squares / static_cast<double>(u.spec.dim));
  return Vec::all(u.step.lr / (__builtin_sqrtf(*sum) + u.step.eps));
}

HYBRIDREC_INLINE float* state_at(const Column& column, uint32_t slot) {
  return column.slabs ? reinterpret_cast<float*>(column.at(slot)) : nullptr;
}

// One row's step, its gradient in memory. `factor` multiplies it; `squares` is the sum of its squares before that.
template <Rule R, RowType T>
void take_step(const Update& u, const StepVectors& s, uint32_t slot, const float* grad, float factor, double squares) {
  const int64_t dim = u.spec.dim;
  uint8_t* row = u.rows.at(slot);
  float *first = state_at(u.state[0], slot), *second = state_at(u.state[1], slot);
  float* out = T == RowType::F32 ? reinterpret_cast<float*>(row) : u.scratch + dim;
  const Vec scale = Vec::all(factor);
  const auto gradient = [&](int64_t i, auto lanes, Vec w) { return (load(grad + i, lanes) * scale).fma(s.decay, w); };
  Vec rate = s.lr;
  if constexpr (R == Rule::RowWiseAdagrad) {
    if (u.step.weight_decay == 0) squares *= static_cast<double>(factor) * factor;
    else {
      Vec sum = Vec::zero();
      along(dim, [&](int64_t i, auto lanes) {
        const Vec g = gradient(i, lanes, load_row<T>(row, i, lanes));
        sum = sum.fma(g, g);
      });
      squares = sum.sum();
    }
    rate = rowwise_rate(u, first, squares);
  }
  along(dim, [&](int64_t i, auto lanes) {
    const Vec w = load_row<T>(row, i, lanes);
    store(stepped<R>(s, rate, w, gradient(i, lanes, w), first + i, second + i, lanes), out + i, lanes);
  });
  if constexpr (T != RowType::F32) {
    const int64_t id = u.id_of ? u.id_of(u.table, slot) : slot;
    store_rounded(u.spec, row, out, id, u.step.step);
  }
}

// What a summed gradient is multiplied by, given the sum of its squares.
HYBRIDREC_INLINE float factor_of(const RowStep& s, double squares) {
  const double norm_squared = squares * s.grad_scale * s.grad_scale;
  if (norm_squared <= static_cast<double>(s.clip) * s.clip) return s.grad_scale;
  return static_cast<float>(s.clip / __builtin_sqrt(squares));
}

// Any row, any gradient.
template <Rule R, RowType T>
void update_row(Update& u, const StepVectors& s, int64_t row) {
  const float* grad = summed<kWide>(u, u.starts[row], u.starts[row + 1]);
  double squares = squares_of(grad, u.spec.dim);
  if (!(squares - squares == 0)) {
    if (!finite(grad, u.spec.dim)) {
      ++u.not_finite;
      return;
    }
    squares = 0;  // finite numbers whose squares are not, in floats
    for (int64_t c = 0; c < u.spec.dim; ++c) squares += static_cast<double>(grad[c]) * grad[c];
  }
  const float factor = factor_of(u.step, squares);
  ++u.updated;
  u.squares += squares * factor * factor;
  if (!u.norm_only) take_step<R, T>(u, s, u.slots[row], grad, factor, squares);
}

template <Rule R, RowType T>
void update_rows(Update& u) {
  const StepVectors s(u.step);
  for (int64_t row = 0; row < u.row_count; ++row) {
    if (row + kRowsAhead<kWide> < u.row_count) fetch_row(u, u.slots[row + kRowsAhead<kWide>]);
    update_row<R, T>(u, s, row);
  }
}

// Rows of exactly N vectors of floats, with plain gradients: all of it stays in registers.
template <Rule R, int N>
void update_vectors(Update& u) {
  const StepVectors s(u.step);
  const bool plain = u.step.weight_decay == 0 && u.step.grad_scale == 1;
  for (int64_t row = 0; row < u.row_count; ++row) {
    if (row + kRowsAhead<N> < u.row_count) fetch_row(u, u.slots[row + kRowsAhead<N>]);
    Vec g[N];
    for (int v = 0; v < N; ++v) g[v] = Vec::zero();
    for (int64_t i = u.starts[row]; i < u.starts[row + 1]; ++i) {
      if (i + kGradsAhead<N> < u.count) prefetch(plain_grad(u, i + kGradsAhead<N>), N * Vec::kLanes * 4);
      const float* from = plain_grad(u, i);
      for (int v = 0; v < N; ++v) g[v] = g[v] + Vec::load(from + v * Vec::kLanes);
    }
    Vec sum = g[0] * g[0];
    for (int v = 1; v < N; ++v) sum = sum.fma(g[v], g[v]);
    const double squares = sum.sum();
    const float factor = plain ? factor_of(u.step, squares) : 0;
    if (!plain || factor != 1 || !(squares - squares == 0) || u.norm_only) {
      update_row<R, RowType::F32>(u, s, row);
      continue;
    }
    ++u.updated;
    u.squares += squares;
    const uint32_t slot = u.slots[row];
    auto* w = reinterpret_cast<float*>(u.rows.at(slot));
    float *first = state_at(u.state[0], slot), *second = state_at(u.state[1], slot);
    const Vec rate = R == Rule::RowWiseAdagrad ? rowwise_rate(u, first, squares) : s.lr;
    for (int v = 0; v < N; ++v) {
      const int c = v * Vec::kLanes;
      stepped<R>(s, rate, Vec::load(w + c), g[v], first + c, second + c, Whole{}).store(w + c);
    }
  }
}

inline bool all_plain(const Update& u) {
  for (int s = 0; s < u.source_count; ++s)
    if (u.sources[s].bag_of || u.sources[s].share || u.sources[s].winners) return false;
  return true;
}

template <Rule R>
void update_type(Update& u) {
  if (u.spec.type == RowType::F16) return update_rows<R, RowType::F16>(u);
  if (u.spec.type == RowType::BF16) return update_rows<R, RowType::BF16>(u);
  if (!all_plain(u)) return update_rows<R, RowType::F32>(u);
  switch (u.spec.dim) {
    case Vec::kLanes: return update_vectors<R, 1>(u);
    case 2 * Vec::kLanes: return update_vectors<R, 2>(u);
    case 4 * Vec::kLanes: return update_vectors<R, 4>(u);
    case 8 * Vec::kLanes: return update_vectors<R, 8>(u);
    default: return update_rows<R, RowType::F32>(u);
  }
}

void update(Update& u) {
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
