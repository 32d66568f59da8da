// A file that is memory: grown by extents that the file system has set aside before anyone writes to them, so that a
// full disk is an error here and never a signal later. It lies in one run of addresses, and never moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace hybridrec {

// What the operating system refused, and its number for why.
struct DiskError : std::runtime_error {
  DiskError(const std::string& what, int code) : std::runtime_error(what), code(code) {}
  int code;
};

enum class Access { Create, Write, Read };

class MappedFile {
 public:
  // All that is there is mapped; it may grow to `most` bytes. With Access::Read, writing to the memory changes no byte of
  // the file.
  MappedFile(std::string path, Access access, size_t most);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  uint8_t* data() const { return base_; }
  void grow(size_t size);  // at least, zeros where new: an eighth more than there were, if the disk has them
  void shrink(size_t size);

 private:
  bool extend(size_t size);
  void map(size_t offset, size_t bytes);
  void advise(size_t offset, size_t bytes) const;
  [[noreturn]] void fail(const std::string& what, int code) const;

  std::string path_;
  Access access_;
  int file_ = -1;
  size_t size_ = 0, reserve_;
  uint8_t *base_ = nullptr, *reserved_ = nullptr;
};

// Why a file of this size does not hold so many bytes, as an error.
void refuse_truncated(const MappedFile& file, size_t wanted);

}  // namespace hybridrec
