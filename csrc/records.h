// What a dynamic table keeps of each slot beside its row: the id, when it was last seen, under LFU how often; on disk, also
// the number of the change that was last made to it. Threads that share the table write when and how often, and a capture
// of an earlier moment reads them.
#pragma once

#include <cstdint>
#include <cstring>

#include "rows.h"

namespace hybridrec::record {

constexpr uint32_t kFree = 0xFFFFFFFFu;       // `touched` in the record of a slot that no row has
constexpr uint32_t kMostCount = 0xFFFF0000u;  // counts stop here, with room for what threads at work add meanwhile

constexpr int64_t kUncounted = 12, kCounted = 16, kStamped = 24;  // bytes of a record

inline int64_t id_in(const uint8_t* record) {
  int64_t id;
  std::memcpy(&id, record, 8);
  return id;
}
inline void set_id(uint8_t* record, int64_t id) { std::memcpy(record, &id, 8); }
inline uint32_t* touched_in(uint8_t* record) { return reinterpret_cast<uint32_t*>(record + 8); }
inline uint32_t* count_in(uint8_t* record) { return reinterpret_cast<uint32_t*>(record + 12); }
inline uint64_t* stamp_in(uint8_t* record) { return reinterpret_cast<uint64_t*>(record + 16); }

// Who sees what `set` wrote sees what its thread wrote before.
inline uint32_t get(const uint32_t* score) { return __atomic_load_n(score, __ATOMIC_ACQUIRE); }
inline void set(uint32_t* score, uint32_t value) { __atomic_store_n(score, value, __ATOMIC_RELEASE); }

}  // namespace hybridrec::record
