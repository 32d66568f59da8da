// What every table has: rows in memory, and a way from ids to slots.
#pragma once

#include <cstdint>

#include "rows.h"

namespace hybridrec {

// Ids of one feature in one batch, and where their slots go.
struct IdSpan {
  const int64_t* ids;
  uint32_t* slots;
  int64_t count;
};

class Table {
 public:
  Table(const RowSpec& spec, uint64_t most, bool one_slab) : rows(spec, most, one_slab) {}
  Table(const Table&) = delete;
  virtual ~Table() = default;
  virtual int64_t size() const = 0;  // rows that hold an id

  Rows rows;
};

enum class OutOfRange { Error, Hash, Zero };

// Rows 0 … n-1; a slot is an id.
class DenseTable : public Table {
 public:
  DenseTable(const RowSpec& spec, int64_t rows, OutOfRange policy);
  int64_t size() const override { return static_cast<int64_t>(rows.size()); }

  // Fills span.slots. The position of the first id outside the table under the policy Error, else -1.
  int64_t resolve(const IdSpan& span) const;

 private:
  OutOfRange policy_;
};

OutOfRange out_of_range(const char* name);

}  // namespace hybridrec
