// Arrow values to what a batch holds: int64 ids and float32 numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "chunk.h"
#include "simd.h"

namespace hybridrec {

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1F, fraction = half & 0x3FF;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7F800000 | (fraction << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {  // zero and subnormals: fraction * 2^-24, exact in float
    const float value = static_cast<float>(fraction) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

template <typename In, typename Out>
HYBRIDREC_SIMD void convert_run(const In* in, Out* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(in[i]);
}

#if defined(__x86_64__)
// Copies past the cache: a batch is larger than it and is read by somebody else, so fetching the destination's lines
// before overwriting them would only waste bandwidth. Baseline SSE2: every x86-64 machine has it.
inline void stream_copy(void* out, const void* in, size_t bytes) {
  auto* to = static_cast<uint8_t*>(out);
  const auto* from = static_cast<const uint8_t*>(in);
  const size_t head = std::min(bytes, (16 - reinterpret_cast<uintptr_t>(to) % 16) % 16);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + 64 <= bytes; at += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + at + 1024), _MM_HINT_NTA);  // across page borders too
    for (size_t lane = 0; lane < 64; lane += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + lane),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + lane)));
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
}
#else
inline void stream_copy(void* out, const void* in, size_t bytes) { std::memcpy(out, in, bytes); }
#endif

constexpr size_t kStream = size_t{32} << 10;  // shorter runs are not worth the fence

// The elements of one kind, by their number.
template <typename T>
struct Plain {
  const T* data;
  T operator[](int64_t i) const { return data[i]; }
};
struct Halves {
  const uint16_t* data;
  float operator[](int64_t i) const { return half_to_float(data[i]); }
};
struct Bits {
  const uint8_t* data;
  int64_t offset;
  bool operator[](int64_t i) const { return bit(data, offset + i); }
};

// Calls `body` with the elements of `values`, in the type of their kind.
template <typename Body>
void with_elements(const Values& values, Body&& body) {
  const auto plain = [&](auto tag) { body(Plain<decltype(tag)>{static_cast<const decltype(tag)*>(values.data)}); };
  switch (values.kind) {
    case Kind::Int8: plain(int8_t{}); break;
    case Kind::UInt8: plain(uint8_t{}); break;
    case Kind::Int16: plain(int16_t{}); break;
    case Kind::UInt16: plain(uint16_t{}); break;
    case Kind::Int32: plain(int32_t{}); break;
    case Kind::UInt32: plain(uint32_t{}); break;
    case Kind::Int64: plain(int64_t{}); break;
    case Kind::UInt64: plain(uint64_t{}); break;
    case Kind::Float: plain(float{}); break;
    case Kind::Double: plain(double{}); break;
    case Kind::Half: body(Halves{static_cast<const uint16_t*>(values.data)}); break;
    case Kind::Bool: body(Bits{static_cast<const uint8_t*>(values.data), values.offset}); break;
  }
}

template <typename Elements, typename Out>
void copy_elements(const Elements& in, int64_t first, int64_t n, Out* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(in[first + i]);
}

template <typename In, typename Out>
void copy_elements(const Plain<In>& in, int64_t first, int64_t n, Out* out) {
  if constexpr (std::is_same_v<In, Out>) {
    const size_t bytes = n * sizeof(Out);
    bytes >= kStream ? stream_copy(out, in.data + first, bytes) : (void)std::memcpy(out, in.data + first, bytes);
  } else {
    convert_run(in.data + first, out, n);
  }
}

// Elements [first, first + n) of `values` as Out, nulls not yet considered.
template <typename Out>
void convert(const Values& values, int64_t first, int64_t n, Out* out) {
  if (n > 0) with_elements(values, [&](const auto& in) { copy_elements(in, first, n, out); });
}

template <typename Out>
Out element(const Values& values, int64_t i) {
  Out out;
  convert(values, i, 1, &out);
  return out;
}

}  // namespace hybridrec
