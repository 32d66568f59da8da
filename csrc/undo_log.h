// What was before, of the change that is being made: whatever is about to be written to is kept here first, and copied back
// when the change fails, or when the next process opens the table and finds that it had not ended.
#pragma once

#include <cstdint>

#include "disk_files.h"
#include "entries.h"
#include "row_images.h"

namespace hybridrec {

class UndoLog {
 public:
  explicit UndoLog(DiskFiles& files);

  // A change begins: nothing is kept yet, and there is room for so many rows of so many bytes.
  void restart(uint64_t rows, int64_t row_bytes);
  // Several threads may keep, of different rows.
  void keep(const void* bytes, size_t n);  // of the header, the index or the sketch
  // Rows, state and records of at most kBatch slots; their whole images.
  const uint8_t* keep_whole(const RowImages& images, const uint32_t* slots, int64_t n);
  // Rows and state alone, of slots whose records stay as they are; any number.
  void keep_values(const RowImages& images, const uint32_t* slots, int64_t n);
  // The scores of a slot, which other threads may be touching: whoever has touched them has kept them before.
  void keep_scores(uint32_t slot, uint8_t* record);

  // Bytes come first: they tell what rows there are. Both do the same when they are done again.
  void undo_bytes();
  void undo_rows(const RowImages& images);
  void trim();  // gives back room that few changes need

  static constexpr int64_t kBatch = 256;

 private:
  DiskFiles& files_;
  Entries entries_;
};

}  // namespace hybridrec
