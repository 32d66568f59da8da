// How the tests use a table: as a lookup does, with its locks and its rows' initial values.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "hash_table.h"
#include "philox.h"

namespace hybridrec {

inline RowSpec spec() { return {0x123456789ABCDEFull, 4, RowType::F32, Init::Uniform, 1.0f}; }

inline Policy policy(uint64_t capacity, Eviction eviction) { return {capacity, eviction, 0, 1.0, 1}; }

// The first column of an id's initial row.
inline float initial(int64_t id) {
  const uint32_t word = philox_of(id, 0, kDrawUniform, spec().key).word[0];
  return static_cast<float>(static_cast<int32_t>(word >> 8) - (1 << 23)) * 0x1p-23f;
}

inline float first_column(const HashTable& table, uint32_t slot) {
  return *reinterpret_cast<const float*>(table.rows.column().at(slot));
}

struct Looked {
  std::vector<uint32_t> slots;  // of all spans, one after another
  Born born;
};

// A training lookup of the ids of several features.
inline Looked train(HashTable& table, const std::vector<std::vector<int64_t>>& features) {
  Looked looked;
  size_t total = 0, start = 0;
  for (const auto& ids : features) total += ids.size();
  looked.slots.resize(total);
  std::vector<IdSpan> spans;
  for (const auto& ids : features) {
    spans.push_back({ids.data(), looked.slots.data() + start, static_cast<int64_t>(ids.size())});
    start += ids.size();
  }
  int64_t absent = 0;
  {
    std::shared_lock<std::shared_mutex> shared(table.lock());
    for (const IdSpan& span : spans) absent += table.find(span, true);
  }
  if (absent == 0) return looked;
  std::unique_lock<std::shared_mutex> alone(table.lock());
  looked.born = table.admit(spans);
  table.fill(looked.born);
  return looked;
}

inline std::vector<uint32_t> look(HashTable& table, const std::vector<int64_t>& ids) {
  std::vector<uint32_t> slots(ids.size());
  std::shared_lock<std::shared_mutex> shared(table.lock());
  table.find({ids.data(), slots.data(), static_cast<int64_t>(ids.size())}, false);
  return slots;
}

inline std::vector<int64_t> live_ids(const HashTable& table) {
  std::vector<int64_t> ids;
  for (uint32_t slot : table.live()) ids.push_back(table.id_of(slot));
  return ids;
}

// id -> (touched, count) of all rows, expired ones left out.
inline std::map<int64_t, std::pair<uint32_t, uint32_t>> scores(const HashTable& table) {
  std::map<int64_t, std::pair<uint32_t, uint32_t>> found;
  for (uint32_t slot : table.live()) found[table.id_of(slot)] = {table.touched(slot), table.count(slot)};
  return found;
}

}  // namespace hybridrec
