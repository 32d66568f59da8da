// Columns with the same number of values in every row: numbers, fixed-size lists, and lists that promised a length.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "by_chunk.h"
#include "convert.h"
#include "pack.h"

namespace hybridrec {

// What stands in a column where a value is missing. An element of a list takes that of its place in the list.
template <typename Out>
struct StandIn {
  bool row, element;        // whether a missing row and a missing element have one; else they are errors
  std::vector<Out> values;  // [width], whether or not they are used
};

// One of two numbers, by their bits: nobody can predict nulls, so that a branch would often be taken in vain.
template <typename Out>
Out chosen(bool first, Out a, Out b) {
  using Bits = std::conditional_t<sizeof(Out) == 8, uint64_t, uint32_t>;
  static_assert(sizeof(Out) == sizeof(Bits));
  Bits bits[2];
  std::memcpy(&bits[0], &a, sizeof(Out));
  std::memcpy(&bits[1], &b, sizeof(Out));
  const Bits mask = Bits{0} - first, found = (bits[0] & mask) | (bits[1] & ~mask);
  Out out;
  std::memcpy(&out, &found, sizeof(Out));
  return out;
}

// One such column, as Out, into rows that lie `stride` apart. False means that a value has no stand-in or a list not the
// promised length: `fault_in` says which row comes first.
template <typename Out>
class Cells {
 public:
  Cells(const Chunks& chunks, int column, int64_t width, StandIn<Out> missing)
      : chunks_(chunks), column_(column), width_(width), missing_(std::move(missing)) {}

  // Rows [start, stop) of one chunk, one after another.
  bool run(size_t chunk, int64_t start, int64_t stop, Out* out, int64_t stride) const {
    const Column& column = chunks_[chunk]->column(column_);
    if (even(column) && !has_nulls(column) && stride == width_) {
      convert(column.values, start * width_, (stop - start) * width_, out);
      return true;
    }
    return write(column, stop - start, [start](int64_t i) { return start + i; }, [](int64_t i) { return i; }, out, stride);
  }

  // n rows of one chunk: rows[i] to row places[i] of `out`.
  bool gather(size_t chunk, const uint32_t* rows, const uint32_t* places, int64_t n, Out* out, int64_t stride) const {
    const Column& column = chunks_[chunk]->column(column_);
    return write(column, n, [rows](int64_t i) { return rows[i]; }, [places](int64_t i) { return places[i]; }, out, stride);
  }

  // The first row that could not be written, in the order of the batch.
  Fault fault_in(const RowChoice& rows) const {
    Fault fault{};
    std::vector<Out> row(width_);
    rows.each([&](int chunk, int64_t i, int64_t) {
      const Column& column = chunks_[chunk]->column(column_);
      if (one(column, i, row.data())) return true;
      const int64_t found = column.begin(i + 1) - column.begin(i);
      fault = {Fault::What::NullElement, column_, chunk, i, found, width_};
      if (column.is_null(i)) fault.what = Fault::What::NullRow;
      else if (found != width_) fault.what = Fault::What::Width;
      return false;
    });
    return fault;
  }

 private:
  bool even(const Column& column) const {
    return column.shape != Shape::List32 && column.shape != Shape::List64 && column.width == width_;
  }

  static bool has_nulls(const Column& column) { return column.validity != nullptr || column.values.validity != nullptr; }

  // One row, of any column.
  bool one(const Column& column, int64_t row, Out* out) const {
    if (column.is_null(row)) {
      std::copy(missing_.values.begin(), missing_.values.end(), out);
      return missing_.row;
    }
    const int64_t begin = column.begin(row);
    if (column.begin(row + 1) - begin != width_) return false;
    convert(column.values, begin, width_, out);
    if (column.shape == Shape::Scalar || column.values.validity == nullptr) return true;
    bool good = true;
    for (int64_t e = 0; e < width_; ++e) {
      if (!column.values.is_null(begin + e)) continue;
      out[e] = missing_.values[e];
      good = missing_.element;
    }
    return good;
  }

  // Row row(i) of a column to row place(i) of `out`, for i < n.
  template <typename Row, typename Place>
  bool write(const Column& column, int64_t n, Row row, Place place, Out* out, int64_t stride) const {
    bool good = true;
    if (width_ != 1 || !even(column) || (column.shape != Shape::Scalar && has_nulls(column))) {
      for (int64_t i = 0; i < n && good; ++i) good = one(column, row(i), out + place(i) * stride);
      return good;
    }
    with_elements(column.values, [&](const auto in) {
      if (!has_nulls(column)) {
        for (int64_t i = 0; i < n; ++i) out[place(i) * stride] = static_cast<Out>(in[row(i)]);
        return;
      }
      const uint8_t* validity = column.validity;
      const int64_t offset = column.validity_offset;
      const Out stand_in = missing_.values[0];
      bool whole = true;
      for (int64_t i = 0; i < n; ++i) {
        const bool present = bit(validity, offset + row(i));
        out[place(i) * stride] = chosen(present, static_cast<Out>(in[row(i)]), stand_in);
        whole &= present;
      }
      good = whole || missing_.row;
    });
    return good;
  }

  const Chunks& chunks_;
  int column_;
  int64_t width_;
  StandIn<Out> missing_;
};

}  // namespace hybridrec
