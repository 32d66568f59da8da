// Dot products of all pairs of a row's vectors, and their gradient. Nothing is multiplied twice but what fills a block:
// with n vectors of D numbers a row takes about n n D / 2 multiplications forth, and n n D back.

// Vector i of a row: the one from below first, if there is one.
inline const float* vector_of(const PairDots& p, int64_t row, int64_t i) {
  const float* fields = p.fields + row * p.fields_stride;
  if (p.below == nullptr) return fields + i * p.dim;
  return i == 0 ? p.below + row * p.below_stride : fields + (i - 1) * p.dim;
}

// Where among all pairs that of vectors i and 0 would be, if each vector before had one with it: that of i and j > i is
// j further.
HYBRIDREC_INLINE int64_t line_of(int64_t i, int64_t n) { return i * n - i * (i + 1) / 2 - i - 1; }

// Column c of all vectors at `turned + c * stride`, with zeros behind the last vector up to a multiple of the lanes.
inline void turn(const PairDots& p, int64_t row, int64_t n, int64_t stride, float* turned) {
  constexpr int kLanes = Vec::kLanes;
  for (int64_t i = 0; i < n; i += kLanes)
    along(p.dim, [&](int64_t c, auto lanes) {
      Vec block[kLanes];
      for (int v = 0; v < kLanes; ++v) block[v] = i + v < n ? load(vector_of(p, row, i + v) + c, lanes) : Vec::zero();
      Vec::turn(block);
      for (int v = 0; v < kLanes; ++v)
        if (c + v < p.dim) block[v].store(turned + (c + v) * stride + i);
    });
}

// The pairs of vectors [i, i + R) with all later ones; `to` is where the pairs of a row begin.
template <int R>
void dots_of(const PairDots& p, int64_t row, int64_t i, int64_t n, int64_t stride, const float* turned, float* to) {
  constexpr int kLanes = Vec::kLanes;
  const float* x[R];
  for (int r = 0; r < R; ++r) x[r] = vector_of(p, row, i + r);
  for (int64_t j = (i + 1) / kLanes * kLanes; j < n; j += kLanes) {
    Vec sum[R];
    for (int r = 0; r < R; ++r) sum[r] = Vec::zero();
    for (int64_t c = 0; c < p.dim; ++c) {
      const Vec y = Vec::load(turned + c * stride + j);
      for (int r = 0; r < R; ++r) sum[r] = sum[r].fma(Vec::all(x[r][c]), y);
    }
    const int last = n - j < kLanes ? static_cast<int>(n - j) : kLanes;
    for (int r = 0; r < R; ++r) {
      const int first = i + r < j ? 0 : static_cast<int>(i + r + 1 - j);
      if (first < last) sum[r].store(to + line_of(i + r, n) + j, first, last);
    }
  }
}

constexpr int kDotRows = 8;

void pair_dots(const PairDots& p, int64_t first, int64_t last, float* scratch, float* out, int64_t width) {
  using Loop = void (*)(const PairDots&, int64_t, int64_t, int64_t, int64_t, const float*, float*);
  static constexpr Loop kLoops[kDotRows] = {dots_of<1>, dots_of<2>, dots_of<3>, dots_of<4>,
                                            dots_of<5>, dots_of<6>, dots_of<7>, dots_of<8>};
  const int64_t n = p.vectors(), stride = (n + Vec::kLanes - 1) / Vec::kLanes * Vec::kLanes;
  const int64_t before = p.below ? p.dim : 0, end = before + n * (n - 1) / 2;
  for (int64_t row = first; row < last; ++row) {
    float* to = out + row * width;
    if (p.below) std::memcpy(to, vector_of(p, row, 0), sizeof(float) * p.dim);
    turn(p, row, n, stride, scratch);
    for (int64_t i = 0; i + 1 < n; i += kDotRows)
      kLoops[(n - 1 - i < kDotRows ? n - 1 - i : kDotRows) - 1](p, row, i, n, stride, scratch, to + before);
    for (int64_t c = end; c < width; ++c) to[c] = 0;
  }
}

// The gradients of vectors [i, i + R) in some columns, of which `sums` has what vectors before them gave; adds to it what
// later ones get of these. Each gradient of a pair is read once, for both.
template <int R, typename Lanes>
HYBRIDREC_INLINE void spread(const PairDots& p, int64_t row, int64_t i, int64_t n, int64_t c, Lanes lanes,
                             const float* grad, float* sums, Vec (&mine)[R]) {
  constexpr int kLanes = Vec::kLanes;
  Vec x[R];
  const float* g[R];
  for (int r = 0; r < R; ++r) {
    x[r] = load(vector_of(p, row, i + r) + c, lanes);
    mine[r] = Vec::load(sums + (i + r) * kLanes);
    g[r] = grad + line_of(i + r, n);
  }
  for (int r = 0; r < R; ++r)
    for (int s = r + 1; s < R; ++s) {
      const Vec of_pair = Vec::all(g[r][i + s]);
      mine[r] = mine[r].fma(of_pair, x[s]);
      mine[s] = mine[s].fma(of_pair, x[r]);
    }
  for (int64_t j = i + R; j < n; ++j) {
    const Vec y = load(vector_of(p, row, j) + c, lanes);
    Vec theirs = Vec::load(sums + j * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec of_pair = Vec::all(g[r][j]);
      mine[r] = mine[r].fma(of_pair, y);
      theirs = theirs.fma(of_pair, x[r]);
    }
    theirs.store(sums + j * kLanes);
  }
}

constexpr int kSpreadRows = 4;

template <int R>
void spread_columns(const PairDots& p, int64_t row, int64_t i, int64_t n, int64_t c, const float* grad, float* sums,
                    float* of_below, float* of_fields) {
  const auto run = [&](auto lanes) {
    Vec mine[R];
    spread<R>(p, row, i, n, c, lanes, grad, sums, mine);
    for (int r = 0; r < R; ++r) {
      const int64_t field = i + r - (p.below ? 1 : 0);
      if (field >= 0) store(mine[r], of_fields + (row * p.fields_count + field) * p.dim + c, lanes);
      else store(mine[r], of_below + row * p.dim + c, lanes);
    }
  };
  if (p.dim - c >= Vec::kLanes) run(Whole{});
  else run(Rest{static_cast<int>(p.dim - c)});
}

void pair_dots_gradient(const PairDots& p, int64_t first, int64_t last, float* scratch, const float* grad,
                        int64_t grad_stride, float* of_below, float* of_fields) {
  using Loop = void (*)(const PairDots&, int64_t, int64_t, int64_t, int64_t, const float*, float*, float*, float*);
  static constexpr Loop kLoops[kSpreadRows] = {spread_columns<1>, spread_columns<2>, spread_columns<3>, spread_columns<4>};
  const int64_t n = p.vectors(), before = p.below ? p.dim : 0;
  for (int64_t row = first; row < last; ++row) {
    const float* g = grad + row * grad_stride;
    along(p.dim, [&](int64_t c, auto lanes) {
      for (int64_t i = 0; i < n; ++i) Vec::zero().store(scratch + i * Vec::kLanes);
      if (p.below) load(g + c, lanes).store(scratch);  // of its copy
      for (int64_t i = 0; i < n; i += kSpreadRows)
        kLoops[(n - i < kSpreadRows ? n - i : kSpreadRows) - 1](p, row, i, n, c, g + before, scratch, of_below, of_fields);
    });
  }
}
