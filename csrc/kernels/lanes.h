// Walking along a row: whole vectors, then the rest. `Whole` and `Rest` let one body serve both.

struct Whole {};
struct Rest {
  int n;
};

inline Vec load(const float* p, Whole) { return Vec::load(p); }
inline Vec load(const float* p, Rest r) { return Vec::load(p, r.n); }
inline void store(Vec v, float* p, Whole) { v.store(p); }
inline void store(Vec v, float* p, Rest r) { v.store(p, r.n); }

template <RowType T>
struct Element {
  using Type = uint16_t;
};
template <>
struct Element<RowType::F32> {
  using Type = float;
};

// Columns [i, i + lanes) of a row as floats.
template <RowType T, typename Lanes>
inline Vec load_row(const uint8_t* row, int64_t i, Lanes lanes) {
  const auto* p = reinterpret_cast<const typename Element<T>::Type*>(row) + i;
  if constexpr (T == RowType::F32) return load(p, lanes);
  else if constexpr (std::is_same_v<Lanes, Whole>) return T == RowType::F16 ? Vec::load_f16(p) : Vec::load_bf16(p);
  else return T == RowType::F16 ? Vec::load_f16(p, lanes.n) : Vec::load_bf16(p, lanes.n);
}

template <typename F>
HYBRIDREC_INLINE void along(int64_t dim, F body) {
  int64_t i = 0;
  for (; i + Vec::kLanes <= dim; i += Vec::kLanes) body(i, Whole{});
  if (i < dim) body(i, Rest{static_cast<int>(dim - i)});
}

// Inlined by force: gcc takes a function that only prefetches for one without effect, and drops its calls.
HYBRIDREC_INLINE void prefetch(const void* p, int64_t bytes) {
  const auto* line = static_cast<const uint8_t*>(p);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at);
}

HYBRIDREC_INLINE void prefetch_to_write(const void* p, int64_t bytes) {
  const auto* line = static_cast<const uint8_t*>(p);
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at, 1);
}
