// XXH64, the 64-bit xxHash, after its public specification. Strings become ids by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hybridrec {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ULL;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;

inline uint64_t rotate_left(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

// Little-endian loads; every machine we build for is little-endian (asserted in bindings.cpp).
template <typename T>
inline T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

inline uint64_t xxh64_round(uint64_t lane, uint64_t input) {
  return rotate_left(lane + input * kPrime2, 31) * kPrime1;
}

inline uint64_t xxh64_avalanche(uint64_t h) {
  h = (h ^ (h >> 33)) * kPrime2;
  h = (h ^ (h >> 29)) * kPrime3;
  return h ^ (h >> 32);
}

inline uint64_t xxh64_word(uint64_t h, uint64_t word) {
  return rotate_left(h ^ xxh64_round(0, word), 27) * kPrime1 + kPrime4;
}

inline uint64_t xxh64(const uint8_t* p, size_t size, uint64_t seed) {
  const uint8_t* end = p + size;
  uint64_t h = seed + kPrime5;
  if (size >= 32) {
    uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; p + 32 <= end; p += 32)
      for (int i = 0; i < 4; ++i) lanes[i] = xxh64_round(lanes[i], load<uint64_t>(p + 8 * i));
    h = rotate_left(lanes[0], 1) + rotate_left(lanes[1], 7) + rotate_left(lanes[2], 12) + rotate_left(lanes[3], 18);
    for (uint64_t lane : lanes) h = (h ^ xxh64_round(0, lane)) * kPrime1 + kPrime4;
  }
  h += size;
  for (; p + 8 <= end; p += 8) h = xxh64_word(h, load<uint64_t>(p));
  if (p + 4 <= end) {
    h = rotate_left(h ^ (load<uint32_t>(p) * kPrime1), 23) * kPrime2 + kPrime3;
    p += 4;
  }
  for (; p < end; ++p) h = rotate_left(h ^ (*p * kPrime5), 11) * kPrime1;
  return xxh64_avalanche(h);
}

// XXH64 of the eight little-endian bytes of one integer.
inline uint64_t xxh64_int(uint64_t value, uint64_t seed) {
  return xxh64_avalanche(xxh64_word(seed + kPrime5 + 8, value));
}

}  // namespace hybridrec
