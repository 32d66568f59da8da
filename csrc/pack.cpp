#include "pack.h"

#include <algorithm>
#include <cstring>

#include "by_chunk.h"
#include "dense_writer.h"
#include "id_writer.h"

namespace hybridrec {
namespace {

size_t line(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Packer::Packer(std::vector<IdField> ids, std::vector<DenseField> dense) : ids_(std::move(ids)), dense_(std::move(dense)) {
  for (const IdField& field : ids_) {
    ragged_ += field.hotness < 0;
    weighted_ = weighted_ || field.weights >= 0;
  }
  for (const DenseField& field : dense_) width_[field.matrix] += field.width;
}

std::optional<Fault> Packer::pack(const Chunks& chunks, const RowChoice& rows, Arena& arena, Packed& out) const {
  const int64_t n = rows.count;
  Fault fault{};
  std::vector<IdWriter> writers;
  writers.reserve(ids_.size());
  std::optional<ByChunk> gathered;
  if (rows.row_of != nullptr) gathered.emplace(rows, chunks);
  const ByChunk* by_chunk = gathered ? &*gathered : nullptr;
  std::vector<int64_t> offsets(ragged_ * (n + 1));
  int64_t* ends = offsets.data();
  out.starts.assign(1, 0);
  for (const IdField& field : ids_) {
    writers.emplace_back(field, chunks, rows, by_chunk);
    int64_t count = n * field.hotness;
    if (field.hotness < 0) {
      ends[0] = 0;
      count = writers.back().measure(ends + 1, fault);
      if (count < 0) return fault;
      ends += n + 1;
    }
    out.starts.push_back(out.starts.back() + count);
  }

  const size_t total = out.starts.back();
  Layout& at = out.layout;
  at.offsets = 0;
  at.values = line(offsets.size() * sizeof(int64_t));
  at.weights = at.values + line((total + kWord) * sizeof(int64_t));  // copy_lists may write a word too much
  at.matrix[0] = at.weights + (weighted_ ? line(total * sizeof(float)) : 0);
  at.matrix[1] = at.matrix[0] + line(n * width_[0] * sizeof(float));
  at.matrix[2] = at.matrix[1] + line(n * width_[1] * sizeof(float));
  at.bytes = at.matrix[2] + line(n * width_[2] * sizeof(float));
  std::unique_ptr<Arena::Block> block = arena.take(at.bytes);
  uint8_t* base = block->data();

  if (!offsets.empty()) std::memcpy(base + at.offsets, offsets.data(), offsets.size() * sizeof(int64_t));
  // The columns decoded last are still in the cache: copy them first. Gathered lists may spill into the next feature's
  // place (copy_lists), so these go forwards.
  float* matrices[3];
  for (int m = 0; m < 3; ++m) matrices[m] = reinterpret_cast<float*>(base + at.matrix[m]);
  if (!DenseWriter(dense_, chunks, width_).write(rows, by_chunk, matrices, fault)) return fault;
  auto* values = reinterpret_cast<int64_t*>(base + at.values);
  auto* weights = reinterpret_cast<float*>(base + at.weights);
  for (size_t i = 0; i < ids_.size(); ++i) {
    const size_t f = rows.row_of == nullptr ? ids_.size() - 1 - i : i;
    if (!writers[f].write(values + out.starts[f], fault)) return fault;
    if (ids_[f].weights >= 0) {
      if (!writers[f].write_weights(weights + out.starts[f], fault)) return fault;
    } else if (weighted_) {
      std::fill(weights + out.starts[f], weights + out.starts[f + 1], 1.0f);
    }
  }
  out.block = std::move(block);
  return std::nullopt;
}

}  // namespace hybridrec
