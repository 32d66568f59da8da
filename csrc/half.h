// float16 and bfloat16 as their bits. Vectors convert in hardware where it can (kernels/vec.h); these are for single
// values, and for the rounding of a row on its way back to memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace hybridrec {

HYBRIDREC_INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

HYBRIDREC_INLINE float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

HYBRIDREC_INLINE float from_bf16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

HYBRIDREC_INLINE float from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7FFF;
  if (rest >= 0x7C00) return float_of(sign | 0x7F800000 | (rest & 0x3FF) << 13);
  if (rest < 0x400) return float_of(sign | bits_of(static_cast<float>(rest) * 5.9604644775390625e-8f));  // 2^-24
  return float_of(sign | ((rest << 13) + 0x38000000));
}

// Nearest, ties to even.
HYBRIDREC_INLINE uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

HYBRIDREC_INLINE uint16_t to_f16(float x) {
  const uint32_t bits = bits_of(x), rest = bits & 0x7FFFFFFF;
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (rest > 0x7F800000) return sign | 0x7E00;
  if (rest >= 0x477FF000) return sign | 0x7C00;  // 65520 and above
  if (rest < 0x38800000) {                       // below 2^-14: adding 0.5 puts the 2^-24 steps into the low bits
    const uint32_t steps = bits_of(float_of(rest) + 0.5f) - 0x3F000000;
    return sign | static_cast<uint16_t>(steps);
  }
  return sign | static_cast<uint16_t>((rest + 0xFFF + (rest >> 13 & 1) - 0x38000000) >> 13);
}

}  // namespace hybridrec
