// A vector of floats as wide as the instruction set this file is compiled for. Included once by each of generic.cpp,
// avx2.cpp and avx512.cpp, inside that file's namespace: nothing here is shared between them, so no code for a newer
// processor can end up in a call on an older one.
//
// Partial loads and stores touch only the first n lanes in memory; the others read as zero. Of a number and a NaN, min
// and max take the argument. `turn` makes lane i of vector v lane v of vector i.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

struct Vec {
  static constexpr int kLanes = 16;
  __m512 v;

  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec all(float x) { return {_mm512_set1_ps(x)}; }
  static __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1); }

  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const float* p, int n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(float* p, int n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  void store(float* p, int from, int to) const { _mm512_mask_storeu_ps(p, mask(to) & ~mask(from), v); }
  void stream(float* p) const { _mm512_stream_ps(p, v); }
  static void turn(Vec (&block)[kLanes]) {
    __m512 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(block[i].v, block[i + 1].v);
      a[i + 1] = _mm512_unpackhi_ps(block[i].v, block[i + 1].v);
    }
    for (int i = 0; i < 16; i += 4)
      for (int k = 0; k < 2; ++k) {
        const __m512d low = _mm512_castps_pd(a[i + k]), high = _mm512_castps_pd(a[i + k + 2]);
        b[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        b[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    for (int i = 0; i < 16; i += 8)
      for (int k = 0; k < 4; ++k) {
        a[i + k] = _mm512_shuffle_f32x4(b[i + k], b[i + k + 4], 0x88);
        a[i + k + 4] = _mm512_shuffle_f32x4(b[i + k], b[i + k + 4], 0xdd);
      }
    for (int k = 0; k < 8; ++k) {
      block[k] = {_mm512_shuffle_f32x4(a[k], a[k + 8], 0x88)};
      block[k + 8] = {_mm512_shuffle_f32x4(a[k], a[k + 8], 0xdd)};
    }
  }

  static Vec load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
  static Vec load_f16(const uint16_t* p, int n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p))}; }
  static Vec load_bf16(const uint16_t* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
  static Vec load_bf16(const uint16_t* p, int n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }
  static Vec widen(__m256i x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))}; }

  Vec operator+(Vec o) const { return {_mm512_add_ps(v, o.v)}; }
  Vec operator-(Vec o) const { return {_mm512_sub_ps(v, o.v)}; }
  Vec operator*(Vec o) const { return {_mm512_mul_ps(v, o.v)}; }
  Vec operator/(Vec o) const { return {_mm512_div_ps(v, o.v)}; }
  Vec fma(Vec a, Vec b) const { return {_mm512_fmadd_ps(a.v, b.v, v)}; }  // this + a * b
  Vec sqrt() const { return {_mm512_sqrt_ps(v)}; }
  Vec min(Vec o) const { return {_mm512_min_ps(v, o.v)}; }
  Vec max(Vec o) const { return {_mm512_max_ps(v, o.v)}; }
  float sum() const { return _mm512_reduce_add_ps(v); }
};

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

struct Vec {
  static constexpr int kLanes = 8;
  __m256 v;

  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec all(float x) { return {_mm256_set1_ps(x)}; }
  static __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const float* p, int n) { return {_mm256_maskload_ps(p, mask(n))}; }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(float* p, int n) const { _mm256_maskstore_ps(p, mask(n), v); }
  void store(float* p, int from, int to) const {
    _mm256_maskstore_ps(p, _mm256_andnot_si256(mask(from), mask(to)), v);
  }
  void stream(float* p) const { _mm256_stream_ps(p, v); }
  static void turn(Vec (&block)[kLanes]) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(block[i].v, block[i + 1].v);
      a[i + 1] = _mm256_unpackhi_ps(block[i].v, block[i + 1].v);
    }
    for (int i = 0; i < 8; i += 4)
      for (int k = 0; k < 2; ++k) {
        const __m256d low = _mm256_castps_pd(a[i + k]), high = _mm256_castps_pd(a[i + k + 2]);
        b[i + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
        b[i + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
      }
    for (int k = 0; k < 4; ++k) {
      block[k] = {_mm256_permute2f128_ps(b[k], b[k + 4], 0x20)};
      block[k + 4] = {_mm256_permute2f128_ps(b[k], b[k + 4], 0x31)};
    }
  }

  static __m128i halves(const uint16_t* p, int n) {
    alignas(16) uint16_t part[8] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return _mm_load_si128(reinterpret_cast<const __m128i*>(part));
  }
  static Vec load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
  static Vec load_f16(const uint16_t* p, int n) { return {_mm256_cvtph_ps(halves(p, n))}; }
  static Vec load_bf16(const uint16_t* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec load_bf16(const uint16_t* p, int n) { return widen(halves(p, n)); }
  static Vec widen(__m128i x) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16))}; }

  Vec operator+(Vec o) const { return {_mm256_add_ps(v, o.v)}; }
  Vec operator-(Vec o) const { return {_mm256_sub_ps(v, o.v)}; }
  Vec operator*(Vec o) const { return {_mm256_mul_ps(v, o.v)}; }
  Vec operator/(Vec o) const { return {_mm256_div_ps(v, o.v)}; }
  Vec fma(Vec a, Vec b) const { return {_mm256_fmadd_ps(a.v, b.v, v)}; }
  Vec sqrt() const { return {_mm256_sqrt_ps(v)}; }
  Vec min(Vec o) const { return {_mm256_min_ps(v, o.v)}; }
  Vec max(Vec o) const { return {_mm256_max_ps(v, o.v)}; }
  float sum() const {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};

#else  // any machine: the compiler turns the loops into what it has (SSE2, NEON)

struct Vec {
  static constexpr int kLanes = 4;
  float v[kLanes];

  template <typename F>
  static Vec each(F f) {
    Vec out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
    return out;
  }

  static Vec zero() { return all(0); }
  static Vec all(float x) { return each([=](int) { return x; }); }

  static Vec load(const float* p) { return each([=](int i) { return p[i]; }); }
  static Vec load(const float* p, int n) { return each([=](int i) { return i < n ? p[i] : 0; }); }
  void store(float* p) const { store(p, kLanes); }
  void store(float* p, int n) const {
    for (int i = 0; i < n; ++i) p[i] = v[i];
  }
  void store(float* p, int from, int to) const {
    for (int i = from; i < to; ++i) p[i] = v[i];
  }
  void stream(float* p) const { store(p); }
  static void turn(Vec (&block)[kLanes]) {
    for (int i = 0; i < kLanes; ++i)
      for (int k = i + 1; k < kLanes; ++k) {
        const float kept = block[i].v[k];
        block[i].v[k] = block[k].v[i];
        block[k].v[i] = kept;
      }
  }

  static Vec load_f16(const uint16_t* p) { return load_f16(p, kLanes); }
  static Vec load_f16(const uint16_t* p, int n) { return each([=](int i) { return i < n ? from_f16(p[i]) : 0; }); }
  static Vec load_bf16(const uint16_t* p) { return load_bf16(p, kLanes); }
  static Vec load_bf16(const uint16_t* p, int n) { return each([=](int i) { return i < n ? from_bf16(p[i]) : 0; }); }

  Vec operator+(Vec o) const { return each([&](int i) { return v[i] + o.v[i]; }); }
  Vec operator-(Vec o) const { return each([&](int i) { return v[i] - o.v[i]; }); }
  Vec operator*(Vec o) const { return each([&](int i) { return v[i] * o.v[i]; }); }
  Vec operator/(Vec o) const { return each([&](int i) { return v[i] / o.v[i]; }); }
  Vec fma(Vec a, Vec b) const { return each([&](int i) { return v[i] + a.v[i] * b.v[i]; }); }
  Vec sqrt() const { return each([&](int i) { return __builtin_sqrtf(v[i]); }); }
  Vec min(Vec o) const { return each([&](int i) { return v[i] < o.v[i] ? v[i] : o.v[i]; }); }
  Vec max(Vec o) const { return each([&](int i) { return v[i] > o.v[i] ? v[i] : o.v[i]; }); }
  float sum() const { return (v[0] + v[1]) + (v[2] + v[3]); }
};

#endif
