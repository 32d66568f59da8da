// A dynamic table in files of one directory, so that it may exceed the memory of the machine, and that a process which is
// killed at any moment loses nothing that it had finished. docs/rows-on-disk.md has the layout, and why that holds.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "buckets.h"
#include "cut.h"
#include "disk_layout.h"
#include "entries.h"
#include "hash_table.h"
#include "home.h"
#include "mapped_file.h"

namespace hybridrec {

// Where a table is, and what it is called there.
struct Place {
  std::string directory, name;
  uint64_t seed;
  bool read_only;
};

class DiskHome final : public Home {
 public:
  DiskHome(const RowSpec& spec, const Policy& policy, const Place& place);
  ~DiskHome() override;
  void settle(HashTable& table);  // the rest of opening, when the table is there

  bool read_only() const override { return access_ == Access::Read; }
  uint8_t* slab(int column, uint64_t number, size_t bytes) override;
  uint8_t* sketch(size_t bytes) override;
  Standing* standing() override { return &live().standing; }
  Figures* figures() override { return layout().figures(); }
  Stripe* stripes(size_t count) override;
  uint8_t* buckets() override { return index_->data(); }
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
  void keep(const void* bytes, size_t n) override;
  bool wants_scores() const override { return !cuts_.empty() || counting(); }
  void keep_scores(uint32_t slot, uint8_t* record) override;

  // The rule that the state belongs to, in words of the caller: given before it is attached.
  std::string rule() const { return {live().rule, live().rule_bytes}; }
  void set_rule(const std::string& rule);
  uint64_t changes() const { return live().changes; }  // made so far
  std::vector<Tag> tags() const;                       // of each source, that of its last change
  void forget_tag(uint64_t source);

  // The table as it is now, by this name, to go back to. Under the lock held alone, between changes.
  void cut(const std::string& name);
  void roll_back(const std::string& name);  // later cuts are forgotten
  void forget_cut(const std::string& name);
  std::vector<std::string> cuts() const;  // in the order in which they were made

 private:
  Layout layout() const { return Layout(header_->data()); }
  Live& live() const { return *layout().live(); }
  Control& control() const { return *layout().control(); }
  std::string file(const std::string& name) const { return place_.directory + "/table." + name; }
  std::unique_ptr<MappedFile> mapped(const std::string& name, size_t most) const;
  size_t for_all(int64_t stride) const { return most_ * static_cast<size_t>(stride) + kSlack; }
  void lock();
  void make(const std::string& text);
  void reopen(const std::string& text);
  void refuse_damage() const;
  void open_cuts();
  void undo_bytes();
  void undo_rows();
  void put_scores(const Entry& entry) const;
  uint8_t* address(uint64_t where) const;
  uint64_t where(const void* bytes) const;
  struct Parts;
  const uint8_t* read_image(const uint8_t* from) const;
  void keep_for_cuts(const uint8_t* images, const uint32_t* slots, const uint64_t* stamps, int64_t n);
  void write_tag(const Tag& tag);
  void end_change();
  bool counting() const { return depth_ > 0 && table_->counted(); }  // counts are among what a change undoes
  void seal() { live().checksum = live().sum(); }
  int64_t image_bytes() const;
  std::vector<int64_t> widths() const { return {live().widths, live().widths + live().states}; }
  std::vector<float> fills() const { return {live().fills, live().fills + live().states}; }
  Cut& find_cut(const std::string& name) const;
  void refuse_cuts(const char* what) const;
  void refuse_reader(const char* what) const;

  static constexpr size_t kSlack = size_t{64} << 20;  // of slabs whose end is not used, and of what grows by steps

  const Place place_;
  Access access_;
  const int64_t row_bytes_;
  int directory_ = -1;
  bool opening_ = true;
  HashTable* table_ = nullptr;
  uint64_t most_;
  std::unique_ptr<MappedFile> header_, records_, rows_, index_, sketch_;
  std::vector<std::unique_ptr<MappedFile>> states_, next_states_;
  std::vector<int64_t> next_widths_;
  std::vector<float> next_fills_;
  std::optional<std::string> next_rule_;
  std::unique_ptr<Buckets> buckets_;
  std::unique_ptr<Entries> log_;
  std::vector<std::unique_ptr<Cut>> cuts_;
  std::mutex scores_;
  size_t stripe_count_ = 0;
  int depth_ = 0;            // changes within one another
  uint64_t number_ = 0;      // of the change that is being made
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
