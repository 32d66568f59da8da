#include "pack.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "simd.h"

namespace hybridrec {
namespace {

using Chunks = std::vector<const Chunk*>;

float half_to_float(uint16_t half) {
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
void stream_copy(void* out, const void* in, size_t bytes) {
  auto* to = static_cast<uint8_t*>(out);
  const auto* from = static_cast<const uint8_t*>(in);
  const size_t head = std::min(bytes, (16 - reinterpret_cast<uintptr_t>(to) % 16) % 16);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + 64 <= bytes; at += 64)
    for (size_t lane = 0; lane < 64; lane += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + lane),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + lane)));
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
}
#else
void stream_copy(void* out, const void* in, size_t bytes) { std::memcpy(out, in, bytes); }
#endif

constexpr size_t kStream = size_t{32} << 10;  // shorter runs are not worth the fence

// Offsets of one run, moved to where the run lies in the batch.
template <typename In>
HYBRIDREC_SIMD void shift_run(const In* in, int64_t shift, int64_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = in[i] + shift;
}

// Elements [first, first + n) of `values` as Out, nulls not yet considered.
template <typename Out>
void convert(const Values& values, int64_t first, int64_t n, Out* out) {
  const auto run = [&](auto tag) {
    using In = decltype(tag);
    const In* in = static_cast<const In*>(values.data) + first;
    if constexpr (std::is_same_v<In, Out>) {
      n * sizeof(Out) >= kStream ? stream_copy(out, in, n * sizeof(Out)) : (void)std::memcpy(out, in, n * sizeof(Out));
    } else {
      convert_run(in, out, n);
    }
  };
  if (n == 0) return;
  switch (values.kind) {
    case Kind::Int8: run(int8_t{}); break;
    case Kind::UInt8: run(uint8_t{}); break;
    case Kind::Int16: run(int16_t{}); break;
    case Kind::UInt16: run(uint16_t{}); break;
    case Kind::Int32: run(int32_t{}); break;
    case Kind::UInt32: run(uint32_t{}); break;
    case Kind::Int64: run(int64_t{}); break;
    case Kind::UInt64: run(uint64_t{}); break;
    case Kind::Float: run(float{}); break;
    case Kind::Double: run(double{}); break;
    case Kind::Half:
      for (int64_t i = 0; i < n; ++i)
        out[i] = static_cast<Out>(half_to_float(static_cast<const uint16_t*>(values.data)[first + i]));
      break;
    case Kind::Bool:
      for (int64_t i = 0; i < n; ++i)
        out[i] = static_cast<Out>(bit(static_cast<const uint8_t*>(values.data), values.offset + first + i));
      break;
  }
}

template <typename Out>
Out element(const Values& values, int64_t i) {
  Out out;
  convert(values, i, 1, &out);
  return out;
}

constexpr int64_t kWord = 4;  // ids copied at once

// Where each chunk keeps a plain column.
template <typename T>
std::vector<const T*> bases(const Chunks& chunks, int column) {
  std::vector<const T*> made;
  for (const Chunk* chunk : chunks) made.push_back(static_cast<const T*>(chunk->column(column).values.data));
  return made;
}

template <typename T>
void gather_scalars(const T* const* base, const Rows& rows, T* out, int64_t stride) {
  for (int64_t j = 0; j < rows.count; ++j) out[j * stride] = base[rows.chunk_of[j]][rows.row_of[j]];
}

// One id feature of one batch. Rows are visited as runs where they are contiguous, singly where they are gathered.
class IdWriter {
 public:
  IdWriter(const IdField& field, const Chunks& chunks, const Rows& rows) : field_(field), chunks_(chunks), rows_(rows) {
    for (const Chunk* chunk : chunks) {
      const Column& column = chunk->column(field.column);
      clean_ = clean_ && column.validity == nullptr && column.values.validity == nullptr;
    }
  }

  // Pass 1: the end of each row's ids, relative to the feature's start; returns their count or -1 on a fault.
  int64_t measure(int64_t* ends, Fault& fault) const {
    int64_t total = 0;
    if (clean_ && rows_.row_of == nullptr) {
      for (const Run& run : rows_.runs) {
        const Column& column = chunks_[run.chunk]->column(field_.column);
        const int64_t n = run.stop - run.start, shift = total - column.begin(run.start);
        switch (column.shape) {
          case Shape::List32: shift_run(static_cast<const int32_t*>(column.offsets) + run.start + 1, shift, ends, n); break;
          case Shape::List64: shift_run(static_cast<const int64_t*>(column.offsets) + run.start + 1, shift, ends, n); break;
          default:
            for (int64_t i = 0; i < n; ++i) ends[i] = shift + column.begin(run.start + i + 1);
        }
        ends += n;
        total = shift + column.begin(run.stop);
      }
      return total;
    }
    const auto visit = [&](int chunk, const Column& column, int64_t row, int64_t j) {
      const int64_t n = clean_ ? column.begin(row + 1) - column.begin(row) : length(chunk, column, row, fault);
      if (n < 0) return false;
      ends[j] = total += n;
      return true;
    };
    return each_row(visit) ? total : -1;
  }

  // Pass 1 of a feature with a promised number of ids per row: false on a row that breaks the promise.
  bool holds(int64_t hotness, Fault& fault) const {
    const auto shaped = [&](const Chunk* chunk) {
      const Column& column = chunk->column(field_.column);
      return column.shape != Shape::List32 && column.shape != Shape::List64 && column.width == hotness;
    };
    if (std::all_of(chunks_.begin(), chunks_.end(), shaped)) return true;
    return each_row([&](int chunk, const Column& column, int64_t row, int64_t) {
      const int64_t n = length(chunk, column, row, fault);
      if (n < 0) return false;
      if (n != hotness) fault = {Fault::What::Width, field_.column, chunk, row, n, hotness};
      return n == hotness;
    });
  }

  // Pass 2: the ids themselves; false on a fault.
  bool write(int64_t* out, Fault& fault) const {
    if (clean_) return rows_.row_of == nullptr ? copy_runs(out) : copy_rows(out);
    const auto visit = [&](int chunk, const Column& column, int64_t row, int64_t) {
      if (column.is_null(row)) {
        if (field_.null == Null::Error) return fail(fault, Fault::What::NullRow, chunk, row);
        if (field_.null == Null::Default) out = std::copy(field_.row_default.begin(), field_.row_default.end(), out);
        return true;
      }
      for (int64_t e = column.begin(row), end = column.begin(row + 1); e < end; ++e) {
        if (!column.values.is_null(e)) {
          *out++ = element<int64_t>(column.values, e);
        } else if (field_.element_null == Null::Default) {
          *out++ = field_.element_default;
        } else if (field_.element_null == Null::Error) {
          return fail(fault, Fault::What::NullElement, chunk, row);
        }
      }
      return true;
    };
    return each_row(visit);
  }

  // One float per id. A null row's default ids weigh 1; a dropped element drops its weight.
  bool write_weights(float* out, Fault& fault) const {
    const auto visit = [&](int chunk, const Column& column, int64_t row, int64_t) {
      if (column.is_null(row)) {
        if (field_.null == Null::Default) out = std::fill_n(out, field_.row_default.size(), 1.0f);
        return true;
      }
      const Column& weights = chunks_[chunk]->column(field_.weights);
      const int64_t begin = column.begin(row), n = column.begin(row + 1) - begin;
      const int64_t first = weights.begin(row), found = weights.is_null(row) ? 0 : weights.begin(row + 1) - first;
      if (found != n) {
        fault = {Fault::What::WeightCount, field_.weights, chunk, row, found, n};
        return false;
      }
      for (int64_t i = 0; i < n; ++i) {
        if (column.values.is_null(begin + i) && field_.element_null == Null::Empty) continue;
        if (weights.values.is_null(first + i)) {
          fault = {Fault::What::NullElement, field_.weights, chunk, row, 0, 0};
          return false;
        }
        *out++ = element<float>(weights.values, first + i);
      }
      return true;
    };
    return each_row(visit);
  }

 private:
  template <typename Visit>
  bool each_row(Visit&& visit) const {
    if (rows_.row_of != nullptr) {
      for (int64_t j = 0; j < rows_.count; ++j) {
        const int chunk = rows_.chunk_of[j];
        if (!visit(chunk, chunks_[chunk]->column(field_.column), rows_.row_of[j], j)) return false;
      }
      return true;
    }
    int64_t j = 0;
    for (const Run& run : rows_.runs) {
      const Column& column = chunks_[run.chunk]->column(field_.column);
      for (int64_t row = run.start; row < run.stop; ++row, ++j)
        if (!visit(static_cast<int>(run.chunk), column, row, j)) return false;
    }
    return true;
  }

  bool fail(Fault& fault, Fault::What what, int chunk, int64_t row) const {
    fault = {what, field_.column, chunk, row, 0, 0};
    return false;
  }

  int64_t length(int chunk, const Column& column, int64_t row, Fault& fault) const {
    if (column.is_null(row)) {
      if (field_.null == Null::Error) return fail(fault, Fault::What::NullRow, chunk, row), -1;
      return field_.null == Null::Default ? static_cast<int64_t>(field_.row_default.size()) : 0;
    }
    const int64_t begin = column.begin(row), end = column.begin(row + 1);
    if (field_.element_null != Null::Empty || column.values.validity == nullptr) return end - begin;
    int64_t n = 0;
    for (int64_t e = begin; e < end; ++e) n += !column.values.is_null(e);
    return n;
  }

  bool copy_runs(int64_t* out) const {
    for (const Run& run : rows_.runs) {
      const Column& column = chunks_[run.chunk]->column(field_.column);
      const int64_t begin = column.begin(run.start), n = column.begin(run.stop) - begin;
      convert(column.values, begin, n, out);
      out += n;
    }
    return true;
  }

  bool copy_rows(int64_t* out) const {
    const auto is = [&](Shape shape) {
      return std::all_of(chunks_.begin(), chunks_.end(), [&](const Chunk* chunk) {
        const Column& column = chunk->column(field_.column);
        return column.shape == shape && column.values.kind == Kind::Int64;
      });
    };
    if (is(Shape::Scalar)) {
      gather_scalars(bases<int64_t>(chunks_, field_.column).data(), rows_, out, 1);
    } else if (is(Shape::List32)) {
      copy_lists(out);
    } else {
      for (int64_t j = 0; j < rows_.count; ++j) {
        const Column& column = chunks_[rows_.chunk_of[j]]->column(field_.column);
        const int64_t begin = column.begin(rows_.row_of[j]), n = column.begin(rows_.row_of[j] + 1) - begin;
        convert(column.values, begin, n, out);
        out += n;
      }
    }
    return true;
  }

  // Lists of a shuffled window lie all over memory: the lines of row j + kAhead are asked for while row j is copied.
  // Short lists are copied in whole words of 32 bytes. What that writes too much, the next row overwrites (the section
  // ends with room for it); it is not done where it would read beyond the column.
  void copy_lists(int64_t* out) const {
    constexpr int64_t kAhead = 12;
    struct Source {
      const int32_t* offsets;
      const int64_t* values;
      int64_t end;
    };
    std::vector<Source> sources;
    for (const Chunk* chunk : chunks_) {
      const Column& column = chunk->column(field_.column);
      sources.push_back({static_cast<const int32_t*>(column.offsets), static_cast<const int64_t*>(column.values.data),
                         column.begin(chunk->rows())});
    }
    for (int64_t j = 0; j < rows_.count; ++j) {
      if (j + kAhead < rows_.count) {
        const Source& next = sources[rows_.chunk_of[j + kAhead]];
        const int64_t* lines = next.values + next.offsets[rows_.row_of[j + kAhead]];
        for (int line = 0; line < 3; ++line) __builtin_prefetch(lines + 8 * line);
      }
      const Source& source = sources[rows_.chunk_of[j]];
      const int64_t begin = source.offsets[rows_.row_of[j]], end = source.offsets[rows_.row_of[j] + 1];
      const int64_t* in = source.values + begin;
      if (end - begin > 64 || end + kWord > source.end) {
        std::memcpy(out, in, (end - begin) * sizeof(int64_t));
      } else {
        for (int64_t i = 0; i < end - begin; i += kWord) std::memcpy(out + i, in + i, kWord * sizeof(int64_t));
      }
      out += end - begin;
    }
  }

  const IdField& field_;
  const Chunks& chunks_;
  const Rows& rows_;
  bool clean_ = true;  // no null anywhere: lengths are differences of offsets, ids are copied as they lie
};

// Dense columns and fixed-size lists into row-major matrices, a block of rows at a time: the block's part of the
// matrix stays in the cache while every column is spread over it.
class DenseWriter {
 public:
  DenseWriter(const DenseField& field, const Chunks& chunks, float* matrix, int64_t stride)
      : field_(field), chunks_(chunks), out_(matrix + field.at), stride_(stride) {
    plain_ = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk* chunk) {
      const Column& column = chunk->column(field.column);
      return column.shape == Shape::Scalar && column.validity == nullptr;
    });
    const bool floats = std::all_of(chunks.begin(), chunks.end(), [&](const Chunk* chunk) {
      return chunk->column(field.column).values.kind == Kind::Float;
    });
    if (plain_ && floats) bases_ = bases<float>(chunks, field.column);
  }

  // Rows [start, stop) of one chunk to rows `at` and on of the matrix; at most kRows of them.
  bool run(int64_t chunk, int64_t start, int64_t stop, int64_t at, Fault& fault) const {
    float* out = out_ + at * stride_;
    if (!plain_) {
      for (int64_t row = start; row < stop; ++row, out += stride_)
        if (!one(static_cast<int>(chunk), row, out, fault)) return false;
      return true;
    }
    float block[kRows];
    const float* in = block;
    if (bases_.empty()) {
      convert(chunks_[chunk]->column(field_.column).values, start, stop - start, block);
    } else {
      in = bases_[chunk] + start;
    }
    for (int64_t i = 0; i < stop - start; ++i) out[i * stride_] = in[i];
    return true;
  }

  // Rows [from, to) of a gathered batch.
  bool gather(const Rows& rows, int64_t from, int64_t to, Fault& fault) const {
    for (int64_t j = from; j < to; ++j) {
      if (!bases_.empty()) {
        out_[j * stride_] = bases_[rows.chunk_of[j]][rows.row_of[j]];
      } else if (!one(rows.chunk_of[j], rows.row_of[j], out_ + j * stride_, fault)) {
        return false;
      }
    }
    return true;
  }

  static constexpr int64_t kRows = 512;

 private:
  bool one(int chunk, int64_t row, float* out, Fault& fault) const {
    const Column& column = chunks_[chunk]->column(field_.column);
    const int64_t begin = column.begin(row), n = column.begin(row + 1) - begin;
    const auto fail = [&](Fault::What what) {
      fault = {what, field_.column, chunk, row, n, field_.width};
      return false;
    };
    if (column.is_null(row)) {
      if (field_.null == Null::Error) return fail(Fault::What::NullRow);
      std::copy(field_.row_default.begin(), field_.row_default.end(), out);
      return true;
    }
    if (n != field_.width) return fail(Fault::What::Width);
    convert(column.values, begin, n, out);
    if (column.values.validity == nullptr || column.shape == Shape::Scalar) return true;
    for (int64_t e = 0; e < n; ++e) {
      if (!column.values.is_null(begin + e)) continue;
      if (field_.null == Null::Error) return fail(Fault::What::NullElement);
      out[e] = field_.row_default[e];
    }
    return true;
  }

  const DenseField& field_;
  const Chunks& chunks_;
  float* out_;
  int64_t stride_;
  bool plain_;
  std::vector<const float*> bases_;  // where every chunk holds plain floats
};

bool write_dense(const std::vector<DenseWriter>& writers, const Rows& rows, Fault& fault) {
  constexpr int64_t kRows = DenseWriter::kRows;
  if (rows.row_of != nullptr) {
    for (int64_t from = 0; from < rows.count; from += kRows)
      for (const DenseWriter& writer : writers)
        if (!writer.gather(rows, from, std::min(rows.count, from + kRows), fault)) return false;
    return true;
  }
  int64_t at = 0;
  for (const Run& run : rows.runs)
    for (int64_t start = run.start; start < run.stop; start += kRows) {
      const int64_t stop = std::min(run.stop, start + kRows);
      for (const DenseWriter& writer : writers)
        if (!writer.run(run.chunk, start, stop, at, fault)) return false;
      at += stop - start;
    }
  return true;
}

size_t line(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Packer::Packer(std::vector<IdField> ids, std::vector<DenseField> dense) : ids_(std::move(ids)), dense_(std::move(dense)) {
  for (const IdField& field : ids_) {
    ragged_ += field.hotness < 0;
    weighted_ = weighted_ || field.weights >= 0;
  }
  for (const DenseField& field : dense_) width_[field.matrix] += field.width;
}

std::optional<Fault> Packer::pack(const Chunks& chunks, const Rows& rows, Arena& arena, Packed& out) const {
  const int64_t n = rows.count;
  Fault fault{};
  std::vector<IdWriter> writers;
  writers.reserve(ids_.size());
  std::vector<int64_t> offsets(ragged_ * (n + 1));
  int64_t* ends = offsets.data();
  out.starts.assign(1, 0);
  for (const IdField& field : ids_) {
    writers.emplace_back(field, chunks, rows);
    int64_t count = n * field.hotness;
    if (field.hotness < 0) {
      ends[0] = 0;
      count = writers.back().measure(ends + 1, fault);
      if (count < 0) return fault;
      ends += n + 1;
    } else if (!writers.back().holds(field.hotness, fault)) {
      return fault;
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
  uint8_t* base = block->data;

  if (!offsets.empty()) std::memcpy(base + at.offsets, offsets.data(), offsets.size() * sizeof(int64_t));
  auto* values = reinterpret_cast<int64_t*>(base + at.values);
  auto* weights = reinterpret_cast<float*>(base + at.weights);
  for (size_t f = 0; f < ids_.size(); ++f) {
    if (!writers[f].write(values + out.starts[f], fault)) return fault;
    if (ids_[f].weights >= 0) {
      if (!writers[f].write_weights(weights + out.starts[f], fault)) return fault;
    } else if (weighted_) {
      std::fill(weights + out.starts[f], weights + out.starts[f + 1], 1.0f);
    }
  }
  std::vector<DenseWriter> dense;
  dense.reserve(dense_.size());
  for (const DenseField& field : dense_)
    dense.emplace_back(field, chunks, reinterpret_cast<float*>(base + at.matrix[field.matrix]), width_[field.matrix]);
  if (!write_dense(dense, rows, fault)) return fault;
  out.block = std::move(block);
  return std::nullopt;
}

}  // namespace hybridrec
