// What every table has: rows in memory, and a way from ids to slots.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "capture.h"
#include "home.h"
#include "rows.h"

namespace hybridrec {

// Ids of one feature in one batch, and where their slots go.
struct IdSpan {
  const int64_t* ids;
  uint32_t* slots;
  int64_t count;
};

// Rows that have come into being, and the ids whose values they are to get.
struct Born {
  std::vector<uint32_t> slots;
  std::vector<int64_t> ids;
};

// Several threads may use a table under its lock: shared to find and to read rows, alone to add and to change them. The
// caller takes it.
class Table {
 public:
  Table(const RowSpec& spec, uint64_t most, bool one_slab, std::unique_ptr<Home> home = nullptr)
      : home(std::move(home)), rows(spec, most, one_slab, this->home.get()) {}
  Table(const Table&) = delete;
  virtual ~Table() = default;
  virtual int64_t size() const = 0;  // rows that hold an id
  virtual uint64_t slots() const { return rows.size(); }  // given to rows so far
  virtual Column records() const { return {nullptr, 0, 0}; }  // ids and scores by slot; a fixed table has none
  virtual bool counted() const { return false; }               // whether scores have counts
  std::shared_mutex& lock() const { return lock_; }

  // Whoever changes rows or their records says so first.
  void changing(const uint32_t* slots, int64_t n) {
    for (Capture* capture : captures) capture->keep(slots, n);
    if (home) home->keep_rows(slots, n);
  }
  // Only rows that are there, and their state: records stay as they are.
  void changing_values(const uint32_t* slots, int64_t n) {
    for (Capture* capture : captures) capture->keep(slots, n);
    if (home) home->keep_values(slots, n);
  }
  void changing_all() {
    for (Capture* capture : captures) capture->keep_all();
  }
  void fill(const Born& born);  // with their initial values, before anyone reads them

  const std::unique_ptr<Home> home;  // none: plain memory
  Rows rows;
  std::vector<Capture*> captures;  // that are not closed

 private:
  mutable std::shared_mutex lock_;
};

// What is done to a table between its making and `done`, under the lock held alone: all of it, or nothing. Of a table in
// plain memory it says nothing.
class Change {
 public:
  explicit Change(Table& table, uint64_t rows = 0) : home_(table.home.get()) {
    if (home_) home_->begin(rows);
  }
  ~Change() {
    if (home_) home_->abort();
  }
  Change(Change&& other) noexcept : home_(std::exchange(other.home_, nullptr)) {}
  void done(const std::optional<Tag>& tag = {}) {
    if (home_) home_->commit(tag);
    home_ = nullptr;
  }

 private:
  Home* home_;
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

// Rows that lie in somebody else's memory, told before each use; -1 has none.
class ViewTable : public DenseTable {
 public:
  explicit ViewTable(int64_t dim) : DenseTable({0, dim, RowType::F32, Init::Constant, 0}, 0, OutOfRange::Zero) {}
  void show(float* data, uint64_t size) { rows.view(reinterpret_cast<uint8_t*>(data), size); }
};

OutOfRange out_of_range(const char* name);

}  // namespace hybridrec
