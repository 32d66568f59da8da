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

HYBRIDREC_INLINE Occurrence occurrence(const Update& u, uint64_t item) {
  const auto low = static_cast<uint32_t>(item);
  const Source& source = u.sources[static_cast<uint64_t>(low) >> u.shift];
  const uint64_t at = low & ((uint64_t{1} << u.shift) - 1);
  const uint64_t bag = source.bag_of ? source.bag_of[at] : at;
  return {source.grad + static_cast<int64_t>(bag) * source.stride, source.share ? source.share[at] : 1,
          source.winners ? source.winners + static_cast<int64_t>(bag) * u.spec.dim : nullptr,
          source.winners ? source.place[at] : 0};
}

HYBRIDREC_INLINE void fetch_row(const Update& u, int64_t item) {
  const auto slot = static_cast<uint32_t>(u.items[item] >> 32);
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
    if (i + kGradsAhead<N> < u.count) prefetch(occurrence(u, u.items[i + kGradsAhead<N>]).grad + at, N * Vec::kLanes * 4);
    const Occurrence o = occurrence(u, u.items[i]);
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
  const Occurrence only = occurrence(u, u.items[first]);
  if (only.winners) {
    for (int64_t c = 0; c < u.spec.dim; ++c) u.scratch[c] = 0;
    for (int64_t i = first; i < last; ++i) {
      const Occurrence o = occurrence(u, u.items[i]);
      if (o.winners) add_winners(u, o, u.scratch);
      else
        for (int64_t c = 0; c < u.spec.dim; ++c) u.scratch[c] += o.share * o.grad[c];
    }
    return u.scratch;
  }
  if (last - first == 1 && only.share == 1) {
    if (first + kGradsAhead<N> < u.count) prefetch(occurrence(u, u.items[first + kGradsAhead<N>]).grad, 4 * u.spec.dim);
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

// One row's step. `factor` is what the summed gradient is multiplied by, `squares` the sum of its squares before.
template <Rule R, RowType T>
inline void take_step(const Update& u, uint32_t slot, const float* grad, float factor, double squares) {
  const RowStep& s = u.step;
  const int64_t dim = u.spec.dim;
  uint8_t* row = u.rows.at(slot);
  float* first = u.state[0].slabs ? reinterpret_cast<float*>(u.state[0].at(slot)) : nullptr;
  float* second = u.state[1].slabs ? reinterpret_cast<float*>(u.state[1].at(slot)) : nullptr;
  float* out = T == RowType::F32 ? reinterpret_cast<float*>(row) : u.scratch + dim;
  const Vec scale = Vec::all(factor), decay = Vec::all(s.weight_decay), lr = Vec::all(s.lr), eps = Vec::all(s.eps);
  const Vec bound = Vec::all(s.bound), under = Vec::all(-s.bound);
  const auto gradient = [&](int64_t i, auto lanes, Vec w) {
    const Vec g = load(grad + i, lanes) * scale;
    return s.weight_decay == 0 ? g : g.fma(decay, w);
  };

  Vec rate = lr;
  if constexpr (R == Rule::RowWiseAdagrad) {
    if (s.weight_decay == 0) squares *= static_cast<double>(factor) * factor;
    else {
      Vec sum = Vec::zero();
      along(dim, [&](int64_t i, auto lanes) {
        const Vec g = gradient(i, lanes, load_row<T>(row, i, lanes));
        sum = sum.fma(g, g);
      });
      squares = sum.sum();
    }
    *first += static_cast<float>(squares / static_cast<double>(dim));
    rate = Vec::all(s.lr / (__builtin_sqrtf(*first) + s.eps));
  }

  along(dim, [&](int64_t i, auto lanes) {
    Vec w = load_row<T>(row, i, lanes);
    Vec g = gradient(i, lanes, w);
    if constexpr (R == Rule::Sgd || R == Rule::RowWiseAdagrad) w = w - rate * g;
    if constexpr (R == Rule::Momentum || R == Rule::Nesterov) {
      const Vec momentum = Vec::all(s.momentum), buffer = g.fma(momentum, load(first + i, lanes));
      store(buffer, first + i, lanes);
      w = w - lr * (R == Rule::Nesterov ? g.fma(momentum, buffer) : buffer);
    }
    if constexpr (R == Rule::Adagrad) {
      const Vec sum = load(first + i, lanes).fma(g, g);
      store(sum, first + i, lanes);
      w = w - lr * g / (sum.sqrt() + eps);
    }
    if constexpr (R == Rule::Adam) {
      const Vec m = load(first + i, lanes), v = load(second + i, lanes);
      const Vec m1 = m.fma(g - m, Vec::all(1 - s.beta1)), v1 = v.fma(g * g - v, Vec::all(1 - s.beta2));
      store(m1, first + i, lanes);
      store(v1, second + i, lanes);
      w = w - lr * m1 / (v1.sqrt() + eps);
    }
    if constexpr (R == Rule::Ftrl) {
      const Vec z = load(first + i, lanes), n = load(second + i, lanes), n1 = n.fma(g, g), root = n1.sqrt();
      const Vec z1 = z + g - (root - n.sqrt()) / lr * w;
      store(z1, first + i, lanes);
      store(n1, second + i, lanes);
      const Vec l1 = Vec::all(s.l1), shrunk = z1 - z1.min(l1).max(Vec::zero() - l1);  // z - sign(z) l1, or 0 inside
      w = Vec::zero() - shrunk / ((Vec::all(s.beta) + root) / lr + Vec::all(s.l2));
    }
    store(w.min(bound).max(under), out + i, lanes);
  });
  if constexpr (T != RowType::F32) {
    const int64_t id = u.id_of ? u.id_of(u.table, slot) : slot;
    store_rounded(u.spec, row, out, id, s.step);
  }
}

// Where each row's occurrences start among the items, and after the last one the number of items; returns the rows.
inline int64_t find_rows(const Update& u, uint32_t* starts) {
  int64_t rows = 0;
  uint64_t before = ~uint64_t{0};
  for (int64_t i = 0; i < u.count; ++i) {
    starts[rows] = static_cast<uint32_t>(i);
    rows += u.items[i] >> 32 != before;
    before = u.items[i] >> 32;
  }
  return rows;
}

template <Rule R, RowType T, int N>
void update_rows(Update& u) {
  const uint32_t* starts = u.starts;
  for (int64_t row = 0; row < u.row_count; ++row) {
    if (row + kRowsAhead<N> < u.row_count) fetch_row(u, starts[row + kRowsAhead<N>]);
    const float* grad = summed<N>(u, starts[row], starts[row + 1]);
    double squares = squares_of(grad, u.spec.dim);
    if (!(squares - squares == 0)) {
      if (!finite(grad, u.spec.dim)) {
        ++u.not_finite;
        continue;
      }
      squares = 0;  // finite numbers whose squares are not, in floats
      for (int64_t c = 0; c < u.spec.dim; ++c) squares += static_cast<double>(grad[c]) * grad[c];
    }
    float factor = u.step.grad_scale;
    if (squares * factor * factor > u.step.clip * u.step.clip) factor = static_cast<float>(u.step.clip / __builtin_sqrt(squares));
    ++u.updated;
    u.squares += squares * factor * factor;
    if (!u.norm_only) take_step<R, T>(u, static_cast<uint32_t>(u.items[starts[row]] >> 32), grad, factor, squares);
  }
}

template <Rule R, RowType T>
void update_width(Update& u) {
  const int64_t vectors = (u.spec.dim + Vec::kLanes - 1) / Vec::kLanes;
  if (vectors == 1) update_rows<R, T, 1>(u);
  else if (vectors == 2) update_rows<R, T, 2>(u);
  else if (vectors == 3) update_rows<R, T, 3>(u);
  else if (vectors == 4) update_rows<R, T, 4>(u);
  else update_rows<R, T, kWide>(u);
}

template <Rule R>
void update_type(Update& u) {
  if (u.spec.type == RowType::F32) update_width<R, RowType::F32>(u);
  else if (u.spec.type == RowType::F16) update_width<R, RowType::F16>(u);
  else update_width<R, RowType::BF16>(u);
}

void update(Update& u) {
  u.row_count = find_rows(u, u.starts);
  u.starts[u.row_count] = static_cast<uint32_t>(u.count);
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
