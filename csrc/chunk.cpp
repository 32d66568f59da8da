#include "chunk.h"

#include <cstring>
#include <stdexcept>

#include "xxhash64.h"

namespace hybridrec {
namespace {

int kind_of(char format) {
  switch (format) {
    case 'c': return static_cast<int>(Kind::Int8);
    case 'C': return static_cast<int>(Kind::UInt8);
    case 's': return static_cast<int>(Kind::Int16);
    case 'S': return static_cast<int>(Kind::UInt16);
    case 'i': return static_cast<int>(Kind::Int32);
    case 'I': return static_cast<int>(Kind::UInt32);
    case 'l': return static_cast<int>(Kind::Int64);
    case 'L': return static_cast<int>(Kind::UInt64);
    case 'e': return static_cast<int>(Kind::Half);
    case 'f': return static_cast<int>(Kind::Float);
    case 'g': return static_cast<int>(Kind::Double);
    case 'b': return static_cast<int>(Kind::Bool);
    default: return -1;
  }
}

int64_t size_of(Kind kind) {
  switch (kind) {
    case Kind::Int8: case Kind::UInt8: case Kind::Bool: return 1;
    case Kind::Int16: case Kind::UInt16: case Kind::Half: return 2;
    case Kind::Int32: case Kind::UInt32: case Kind::Float: return 4;
    default: return 8;
  }
}

const uint8_t* validity_of(const ArrowArray& array) {
  return array.null_count == 0 || array.n_buffers == 0 ? nullptr : static_cast<const uint8_t*>(array.buffers[0]);
}

bool is_text(const char* format) { return std::strlen(format) == 1 && std::strchr("uUzZ", format[0]) != nullptr; }

int64_t text_end(const ArrowArray& text, bool wide, int64_t i) {
  const int64_t at = text.offset + i;
  return wide ? static_cast<const int64_t*>(text.buffers[1])[at] : static_cast<const int32_t*>(text.buffers[1])[at];
}

template <typename Index>
void gather_hashes(const Index* index, const std::vector<int64_t>& hashes, int64_t n, const uint8_t* validity,
                   int64_t validity_offset, int64_t* out) {
  const uint64_t size = hashes.size();
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t at = static_cast<uint64_t>(index[i]);
    if (at < size) {
      out[i] = hashes[at];
    } else if (validity != nullptr && !bit(validity, validity_offset + i)) {
      out[i] = 0;  // whatever stands under a null is never looked at
    } else {
      throw std::runtime_error("dictionary index outside its dictionary");
    }
  }
}

}  // namespace

const std::vector<int64_t>& HashCache::hashes(size_t column, const ArrowArray& text, bool wide, uint64_t seed) {
  if (slots_.size() <= column) slots_.resize(column + 1);
  Slot& slot = slots_[column];
  const auto* data = static_cast<const uint8_t*>(text.buffers[2]);
  const int64_t first = text.length == 0 ? 0 : text_end(text, wide, 0);
  size_t same = 0;  // entries at the front that are already known
  const size_t known = std::min(slot.hashes.size(), static_cast<size_t>(text.length));
  while (same < known && slot.ends[same] == text_end(text, wide, same + 1) - first) ++same;
  if (same > 0 && std::memcmp(slot.bytes.data(), data + first, slot.ends[same - 1]) != 0) same = 0;
  slot.hashes.resize(same);
  slot.ends.resize(same);
  slot.bytes.resize(same == 0 ? 0 : slot.ends[same - 1]);
  for (int64_t i = same; i < text.length; ++i) {
    const int64_t begin = text_end(text, wide, i), end = text_end(text, wide, i + 1);
    slot.hashes.push_back(static_cast<int64_t>(xxh64(data + begin, end - begin, seed)));
    slot.ends.push_back(end - first);
    slot.bytes.append(reinterpret_cast<const char*>(data) + begin, end - begin);
  }
  return slot.hashes;
}

Chunk::Chunk(ArrowSchema* schema, ArrowArray* array, HashCache& cache, uint64_t seed) {
  columns_.reserve(array->n_children);
  for (int64_t i = 0; i < array->n_children; ++i)
    columns_.push_back(import(i, *schema->children[i], *array->children[i], cache, seed));
  array_ = *array;  // from here on the release is ours
  array->release = nullptr;
}

Chunk::~Chunk() {
  if (array_.release != nullptr) array_.release(&array_);
}

Column Chunk::import(size_t index, const ArrowSchema& schema, const ArrowArray& array, HashCache& cache,
                     uint64_t seed) {
  Column column;
  const std::string format = schema.format;
  if (format[0] != '+') {
    column.values = leaf(index, schema, array, 0, array.length, cache, seed);
    column.validity = column.values.validity;
    column.validity_offset = column.values.offset;
    return column;
  }
  column.validity = validity_of(array);
  column.validity_offset = array.offset;
  const ArrowArray& child = *array.children[0];
  int64_t first, last;  // the elements that belong to this slice
  if (format.rfind("+w:", 0) == 0) {
    column.shape = Shape::Fixed;
    column.width = std::stoll(format.substr(3));
    first = array.offset * column.width;
    last = first + array.length * column.width;
  } else if (format == "+l" || format == "+L") {
    column.shape = format == "+l" ? Shape::List32 : Shape::List64;
    const auto* offsets = static_cast<const uint8_t*>(array.buffers[1]);
    static const int64_t kEmpty[2] = {0, 0};  // an empty array may come without an offsets buffer
    column.offsets = offsets == nullptr ? reinterpret_cast<const uint8_t*>(kEmpty)
                                        : offsets + array.offset * (column.shape == Shape::List32 ? 4 : 8);
    first = array.length == 0 ? 0 : column.begin(0);
    last = array.length == 0 ? 0 : column.begin(array.length);
  } else {
    throw std::invalid_argument("column type " + format + " is not one the packer reads");
  }
  column.values = leaf(index, *schema.children[0], child, first, last, cache, seed);
  if (column.shape == Shape::Fixed && array.offset != 0) {  // row 0 of the slice starts at its own element
    Values& values = column.values;
    if (values.kind != Kind::Bool)
      values.data = static_cast<const uint8_t*>(values.data) + first * size_of(values.kind);
    values.offset += first;
  }
  return column;
}

Values Chunk::leaf(size_t index, const ArrowSchema& schema, const ArrowArray& array, int64_t first, int64_t last,
                   HashCache& cache, uint64_t seed) {
  Values values;
  values.validity = validity_of(array);
  values.offset = array.offset;
  const int kind = kind_of(schema.format[0]);
  const bool text = schema.dictionary == nullptr && is_text(schema.format);
  if (std::strlen(schema.format) != 1 || (kind < 0 && !text) ||
      (schema.dictionary != nullptr && !is_text(schema.dictionary->format)))
    throw std::invalid_argument(std::string("column type ") + schema.format + " is not one the packer reads");
  if (!text && schema.dictionary == nullptr) {
    values.kind = static_cast<Kind>(kind);
    values.data = array.buffers[1];
    if (values.kind != Kind::Bool && values.data != nullptr)
      values.data = static_cast<const uint8_t*>(values.data) + array.offset * size_of(values.kind);
    return values;
  }
  const int64_t n = last - first;
  owned_.emplace_back(new int64_t[n > 0 ? n : 1]);
  int64_t* out = owned_.back().get();
  values.kind = Kind::Int64;
  values.data = out - first;  // elements before `first` belong to another slice and are never read
  if (text) {
    const bool wide = schema.format[0] == 'U' || schema.format[0] == 'Z';
    const auto* data = static_cast<const uint8_t*>(array.buffers[2]);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t begin = text_end(array, wide, first + i), end = text_end(array, wide, first + i + 1);
      out[i] = static_cast<int64_t>(xxh64(data + begin, end - begin, seed));
    }
    return values;
  }
  const bool wide = schema.dictionary->format[0] == 'U' || schema.dictionary->format[0] == 'Z';
  const std::vector<int64_t>& hashes = cache.hashes(index, *array.dictionary, wide, seed);
  const auto gather = [&](auto tag) {
    using Index = decltype(tag);
    const Index* at = static_cast<const Index*>(array.buffers[1]) + array.offset + first;
    gather_hashes(at, hashes, n, values.validity, array.offset + first, out);
  };
  switch (static_cast<Kind>(kind)) {
    case Kind::Int8: gather(int8_t{}); break;
    case Kind::UInt8: gather(uint8_t{}); break;
    case Kind::Int16: gather(int16_t{}); break;
    case Kind::UInt16: gather(uint16_t{}); break;
    case Kind::Int32: gather(int32_t{}); break;
    case Kind::UInt32: gather(uint32_t{}); break;
    case Kind::Int64: gather(int64_t{}); break;
    case Kind::UInt64: gather(uint64_t{}); break;
    default: throw std::invalid_argument("dictionary indices must be integers");
  }
  return values;
}

}  // namespace hybridrec
