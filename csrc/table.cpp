#include "table.h"

#include <stdexcept>
#include <string>

#include "xxhash64.h"

namespace hybridrec {

OutOfRange out_of_range(const char* name) {
  const std::string policy = name;
  if (policy == "error") return OutOfRange::Error;
  if (policy == "hash") return OutOfRange::Hash;
  if (policy == "zero") return OutOfRange::Zero;
  throw std::invalid_argument("out_of_range is error, hash or zero, not " + policy);
}

void Table::fill(const Born& born) {
  changing(born.slots.data(), static_cast<int64_t>(born.slots.size()));
  rows.init(born.slots.data(), born.ids.data(), static_cast<int64_t>(born.slots.size()));
}

DenseTable::DenseTable(const RowSpec& spec, int64_t count, OutOfRange policy)
    : Table(spec, static_cast<uint64_t>(count), true), policy_(policy) {
  rows.grow(count);
  rows.init_all();
}

int64_t DenseTable::resolve(const IdSpan& span) const {
  const uint64_t size = rows.size();
  uint64_t beyond = 0;
  for (int64_t i = 0; i < span.count; ++i) {  // negative ids are large unsigned ones
    const auto id = static_cast<uint64_t>(span.ids[i]);
    beyond |= id >= size;
    span.slots[i] = static_cast<uint32_t>(id);
  }
  if (!beyond) return -1;
  for (int64_t i = 0; i < span.count; ++i) {
    const auto id = static_cast<uint64_t>(span.ids[i]);
    if (id < size) continue;
    if (policy_ == OutOfRange::Error) return i;
    span.slots[i] = policy_ == OutOfRange::Zero ? kMissing : static_cast<uint32_t>(xxh64_int(id, 0) % size);
  }
  return -1;
}

}  // namespace hybridrec
