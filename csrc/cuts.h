// The cuts of a table on disk: what rows and scores were is added to the file of each before they first change.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cut.h"
#include "disk_files.h"
#include "row_images.h"

namespace hybridrec {

class Cuts {
 public:
  explicit Cuts(DiskFiles& files) : files_(files) {}
  void open();  // those there are in the directory

  bool empty() const { return cuts_.empty(); }
  std::vector<std::string> names() const;  // in the order in which they were made
  Cut& find(const std::string& name) const;
  void refuse(const char* what) const;              // to replace this, if there are any
  void refuse_name(const std::string& name) const;  // unless a cut may be made by it
  void make(const std::string& name, const Sketch* sketch);
  void forget(const std::string& name);
  void forget_after(const Cut& cut);

  // Of rows that have not changed since a cut, by their stamps, the whole images. Several threads, with different slots.
  void keep(const RowImages& images, const uint8_t* whole, const uint32_t* slots, const uint64_t* stamps, int64_t n);
  // Of a row that has not been seen since a cut, the scores. Several threads, also with the same slot.
  void keep_scores(uint32_t slot, uint8_t* record);

 private:
  std::string path(const std::string& name) const { return files_.path("cut-" + name); }
  size_t reserve() const;

  DiskFiles& files_;
  std::vector<std::unique_ptr<Cut>> cuts_;
  std::mutex scores_;
};

// Makes all of a table what it was at a cut, as one change. The cut stays, without entries; later ones are forgotten.
void roll_back(HashTable& table, DiskFiles& files, Cuts& cuts, const std::string& name);

}  // namespace hybridrec
