// The files of a table on disk, mapped, and the lock on their directory. docs/rows-on-disk.md has what is in each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "disk_declared.h"
#include "disk_layout.h"
#include "mapped_file.h"

namespace hybridrec {

class DiskFiles {
 public:
  // Makes them where the directory has none. Header, index and sketch are there then; the rest comes with open_rows, when
  // what a killed process left in those is undone.
  DiskFiles(const RowSpec& spec, const Policy& policy, const Place& place);
  ~DiskFiles();
  DiskFiles(const DiskFiles&) = delete;
  void open_rows();
  void settle();  // opening is over: slabs that are asked for from now on are new

  const Place& place() const { return place_; }
  Access access() const { return access_; }
  void refuse_reader(const char* what) const;
  std::string path(const std::string& name) const { return place_.directory + "/table." + name; }

  Layout layout() const { return Layout(header_->data()); }
  Live& live() const { return *layout().live(); }
  Control& control() const { return *layout().control(); }
  void seal() const { live().checksum = live().sum(); }  // of what changes

  MappedFile& index() const { return *index_; }
  MappedFile& sketch() const { return *sketch_; }
  uint8_t* slab(int column, uint64_t number, size_t bytes);
  uint8_t* sketch(size_t bytes);
  // Files for other state columns, and then that they are the ones that count.
  void make_states(const std::vector<int64_t>& widths, uint64_t slabs, uint64_t slab_rows);
  void take_states();

  // Bytes of the header, the index or the sketch: what they are of in a log, and back.
  uint64_t where(const void* bytes) const;
  uint8_t* address(uint64_t where) const;
  uint64_t most() const { return most_; }  // rows
  int64_t row_bytes() const { return row_bytes_; }

 private:
  std::unique_ptr<MappedFile> mapped(const std::string& name, size_t most) const;
  std::string state_name(uint64_t generation, size_t k) const;
  size_t for_all(int64_t stride) const { return most_ * static_cast<size_t>(stride) + kSlack; }
  void lock();
  void make(const std::string& text) const;
  void open(const std::string& text);
  void refuse_damage() const;
  void remove_leavings() const;

  static constexpr size_t kSlack = size_t{64} << 20;  // of slabs whose end is not used, and of what grows by steps

  const Place place_;
  const Access access_;
  const int64_t row_bytes_;
  const uint64_t most_;
  int directory_ = -1;
  bool opening_ = true;
  std::unique_ptr<MappedFile> header_, records_, rows_, index_, sketch_;
  std::vector<std::unique_ptr<MappedFile>> states_, next_states_;
};

}  // namespace hybridrec
