// A dynamic table in files of one directory, so that it may exceed the memory of the machine, and that a process which is
// killed at any moment loses nothing that it had finished. docs/rows-on-disk.md has why that holds. Its parts:
//
//   disk_files   the files, the lock, opening and refusing
//   undo_log     what was before, of the change that is being made
//   cuts         moments to go back to
//   disk_tags    who the last changes came from
//   buckets      room in the file of the index
//
// What is here is the order in which a change uses them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "buckets.h"
#include "cuts.h"
#include "disk_files.h"
#include "disk_tags.h"
#include "hash_table.h"
#include "home.h"
#include "undo_log.h"

namespace hybridrec {

class DiskHome final : public Home {
 public:
  DiskHome(const RowSpec& spec, const Policy& policy, const Place& place);
  void settle(HashTable& table);  // the rest of opening, when the table is there

  bool read_only() const override { return files_.access() == Access::Read; }
  uint8_t* slab(int column, uint64_t number, size_t bytes) override { return files_.slab(column, number, bytes); }
  uint8_t* sketch(size_t bytes) override { return files_.sketch(bytes); }
  Standing* standing() override { return &live().standing; }
  Figures* figures() override { return files_.layout().figures(); }
  Stripe* stripes(size_t count) override;
  uint8_t* buckets() override { return files_.index().data(); }
  uint64_t take_buckets(uint32_t count) override { return buckets_->take(count); }
  void give_buckets(uint64_t at, uint32_t count) override { buckets_->give(at, count, control().emptying != 0); }
  void attach(const std::vector<int64_t>& widths, const std::vector<float>& fills, uint64_t slabs, uint64_t slab_rows) override;
  void attached() override;
  void begin(uint64_t rows) override;
  void commit(const std::optional<Tag>& tag) override;
  void abort() override;
  void emptying() override;
  void whole() override;
  void keep_rows(const uint32_t* slots, int64_t n) override;
  void keep_values(const uint32_t* slots, int64_t n) override;
  void keep(const void* bytes, size_t n) override;
  bool wants_scores() const override { return !cuts_.empty() || counting(); }
  void keep_scores(uint32_t slot, uint8_t* record) override;

  // The rule that the state belongs to, in words of the caller: given before it is attached.
  std::string rule() const { return {live().rule, live().rule_bytes}; }
  void set_rule(const std::string& rule);
  uint64_t changes() const { return live().changes; }  // made so far
  std::vector<Tag> tags() const { return DiskTags(files_.layout()).all(); }
  void forget_tag(uint64_t source);

  // The table as it is now, by this name, to go back to. Under the lock held alone, between changes.
  void cut(const std::string& name);
  void roll_back(const std::string& name) { hybridrec::roll_back(*table_, files_, cuts_, name); }
  void forget_cut(const std::string& name) { cuts_.forget(name); }
  std::vector<std::string> cuts() const { return cuts_.names(); }

 private:
  Live& live() const { return files_.live(); }
  Control& control() const { return files_.control(); }
  bool counting() const { return depth_ > 0 && table_->counted(); }  // a lookup within a change is undone with its counts
  bool keeps() const;  // whether what is about to change is to be kept
  int64_t batch_to_keep(const Column& records, const uint32_t* slots, int64_t n, uint32_t* mine, uint64_t* stamps) const;
  void end_change();

  DiskFiles files_;
  UndoLog log_;
  Cuts cuts_;
  std::unique_ptr<Buckets> buckets_;
  HashTable* table_ = nullptr;
  std::vector<int64_t> next_widths_;
  std::vector<float> next_fills_;
  std::optional<std::string> next_rule_;
  size_t stripe_count_ = 0;
  int depth_ = 0;             // changes within one another
  uint64_t number_ = 0;       // of the change that is being made
  uint64_t begun_given_ = 0;  // slots there were when it began
};

// The table in a directory, or a new one if the directory is empty or not there. std::invalid_argument where it is another
// table, or none of ours; DiskError where the system refuses something, or somebody else has it open.
class DiskTable final : public HashTable {
 public:
  DiskTable(const RowSpec& spec, const Policy& policy, const Place& place)
      : HashTable(spec, policy, std::make_unique<DiskHome>(spec, policy, place)) {
    disk().settle(*this);
  }
  DiskHome& disk() const { return static_cast<DiskHome&>(*home); }
};

}  // namespace hybridrec
