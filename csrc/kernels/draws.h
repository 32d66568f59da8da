// Random draws for a whole row at a time: initial values, and the rounding of float16 and bfloat16 rows.

constexpr int kBlocks = 16;  // Philox calls side by side: the compiler makes vectors of them

// words[j][b] is word j of the call with counter (id, first + b, purpose).
inline void philox_blocks(int64_t id, uint32_t first, uint32_t purpose, uint64_t key, uint32_t (&words)[4][kBlocks]) {
  uint32_t *c0 = words[0], *c1 = words[1], *c2 = words[2], *c3 = words[3];
  for (int b = 0; b < kBlocks; ++b) {
    c0[b] = static_cast<uint32_t>(id);
    c1[b] = static_cast<uint32_t>(static_cast<uint64_t>(id) >> 32);
    c2[b] = first + b;
    c3[b] = purpose;
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int b = 0; b < kBlocks; ++b) {
      const uint64_t p0 = 0xD2511F53ull * c0[b], p1 = 0xCD9E8D57ull * c2[b];
      c0[b] = static_cast<uint32_t>(p1 >> 32) ^ c1[b] ^ k0;
      c1[b] = static_cast<uint32_t>(p1);
      c2[b] = static_cast<uint32_t>(p0 >> 32) ^ c3[b] ^ k1;
      c3[b] = static_cast<uint32_t>(p0);
    }
}

inline void put(const RowSpec& spec, uint8_t* row, int64_t c, float value) {
  if (spec.type == RowType::F32) reinterpret_cast<float*>(row)[c] = value;
  else reinterpret_cast<uint16_t*>(row)[c] = spec.type == RowType::F16 ? to_f16(value) : to_bf16(value);
}

inline void init_uniform(const RowSpec& spec, uint8_t* row, int64_t id) {
  const auto step = static_cast<float>(spec.scale / 8388608.0);
  const int64_t end = spec.column + spec.dim;
  for (int64_t start = spec.column / (4 * kBlocks) * (4 * kBlocks); start < end; start += 4 * kBlocks) {
    uint32_t words[4][kBlocks];
    philox_blocks(id, static_cast<uint32_t>(start / 4), kDrawUniform, spec.key, words);
    float values[4][kBlocks];
    for (int j = 0; j < 4; ++j)
      for (int b = 0; b < kBlocks; ++b)
        values[j][b] = static_cast<float>(static_cast<int32_t>(words[j][b] >> 8) - 8388608) * step;
    const int64_t n = end - start < 4 * kBlocks ? end - start : 4 * kBlocks;
    for (int64_t c = spec.column > start ? spec.column - start : 0; c < n; ++c)
      put(spec, row, start + c - spec.column, values[c % 4][c / 4]);
  }
}

inline void init_normal(const RowSpec& spec, uint8_t* row, int64_t id) {
  // Eight uniform 16-bit numbers added up are nearly normal, and exact on every machine.
  const auto step = static_cast<float>(spec.scale / __builtin_sqrt(8.0 * 4294967295.0 / 12.0));
  uint32_t words[4][kBlocks];
  for (int64_t c = spec.column / kBlocks * kBlocks; c < spec.column + spec.dim; ++c) {
    if (c % kBlocks == 0) philox_blocks(id, static_cast<uint32_t>(c), kDrawNormal, spec.key, words);
    int32_t sum = -262140;
    for (auto& word : words) sum += static_cast<int32_t>(word[c % kBlocks] & 0xFFFF) + static_cast<int32_t>(word[c % kBlocks] >> 16);
    if (c >= spec.column) put(spec, row, c - spec.column, static_cast<float>(sum) * step);
  }
}

void init_rows(const RowSpec& spec, Column rows, const uint32_t* slots, const int64_t* ids, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* row = rows.at(slots[i]);
    if (spec.init == Init::Uniform) init_uniform(spec, row, ids[i]);
    else if (spec.init == Init::Normal) init_normal(spec, row, ids[i]);
    else
      for (int64_t c = 0; c < spec.dim; ++c) put(spec, row, c, static_cast<float>(spec.scale));
  }
}

// Up or down by chance, `draw` being 16 random bits. A number that rounding to nearest makes infinite is infinite here
// too; no other becomes so.
inline uint16_t round_bf16(float x, uint32_t draw) {
  const uint32_t bits = bits_of(x), size = bits & 0x7FFFFFFF;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (size > 0x7F800000) return sign | 0x7FC0;
  if (size >= 0x7F7F8000) return sign | 0x7F80;
  const uint32_t up = (size + draw) >> 16;
  return sign | static_cast<uint16_t>(up > 0x7F7F ? 0x7F7F : up);
}

inline uint16_t round_f16(float x, uint32_t draw) {
  const uint32_t bits = bits_of(x), size = bits & 0x7FFFFFFF;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (size > 0x7F800000) return sign | 0x7E00;
  if (size >= 0x477FF000) return sign | 0x7C00;
  if (size < 0x38800000) {  // multiples of 2^-24: fixed point with 16 fractional bits
    const uint32_t shift = 126 - (size >> 23);
    const uint64_t fixed = static_cast<uint64_t>((size & 0x7FFFFF) | 0x800000) << 16 >> (shift > 63 ? 63 : shift);
    return sign | static_cast<uint16_t>((fixed + draw) >> 16);
  }
  const uint32_t up = ((size + (draw & 0x1FFF)) >> 13) - (112 << 10);
  return sign | static_cast<uint16_t>(up > 0x7BFF ? 0x7BFF : up);
}

// Stores a row of floats in a half type, each element rounded up or down by chance.
inline void store_rounded(const RowSpec& spec, uint8_t* row, const float* values, int64_t id, uint32_t step) {
  const uint32_t purpose = kDrawRounding + step % 0xFFFFFFFEu;
  auto* out = reinterpret_cast<uint16_t*>(row);
  uint32_t words[4][kBlocks];
  for (int64_t at = spec.column / (8 * kBlocks) * (8 * kBlocks); at < spec.column + spec.dim; ++at) {
    const int64_t block = at / 8, c = at - spec.column;
    if (at % (8 * kBlocks) == 0) philox_blocks(id, static_cast<uint32_t>(block), purpose, spec.key, words);
    if (c < 0) continue;
    const uint32_t word = words[at % 8 / 2][block % kBlocks], draw = at % 2 ? word >> 16 : word & 0xFFFF;
    out[c] = spec.type == RowType::F16 ? round_f16(values[c], draw) : round_bf16(values[c], draw);
  }
}
