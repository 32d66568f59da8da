#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "memory_limit.h"

namespace hybridrec {

namespace {

constexpr size_t kPage = 4096, kHuge = size_t{2} << 20;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// A file beyond this is read and written in small pages: most of it is not in memory, and no more should come than is
// asked for.
size_t large() { return memory_limit() / 4; }

// Bytes of disk for this part of a file: 0, or why not.
int set_aside(int file, size_t offset, size_t bytes) {
#if defined(__APPLE__)
  fstore_t wanted{F_ALLOCATEALL, F_PEOFPOSMODE, 0, static_cast<off_t>(bytes), 0};
  if (fcntl(file, F_PREALLOCATE, &wanted) != 0 || ftruncate(file, static_cast<off_t>(offset + bytes)) != 0) return errno;
  return 0;
#else
  return posix_fallocate(file, static_cast<off_t>(offset), static_cast<off_t>(bytes));
#endif
}

std::string free_space(const std::string& path) {
  struct statvfs about{};
  if (statvfs(path.c_str(), &about) != 0) return "an unknown number of";
  return std::to_string(uint64_t{about.f_bavail} * about.f_frsize);
}

}  // namespace

MappedFile::MappedFile(std::string path, Access access, size_t most)
    : path_(std::move(path)), access_(access), reserve_(rounded(most + kHuge, kHuge)) {
  const int flags = access == Access::Read ? O_RDONLY : access == Access::Write ? O_RDWR : O_RDWR | O_CREAT | O_TRUNC;
  file_ = open(path_.c_str(), flags | O_CLOEXEC, 0666);
  if (file_ < 0) fail("cannot open", errno);
  try {
    struct stat about{};
    if (fstat(file_, &about) != 0) fail("cannot look at", errno);
    size_ = static_cast<size_t>(about.st_size) / kPage * kPage;
    reserve_ = std::max(reserve_, rounded(size_, kHuge));
    void* found = mmap(nullptr, reserve_ + kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) fail("no addresses are left for " + std::to_string(reserve_) + " bytes, a smaller capacity needs fewer, of", errno);
    reserved_ = static_cast<uint8_t*>(found);
    base_ = reinterpret_cast<uint8_t*>(rounded(reinterpret_cast<size_t>(reserved_), kHuge));
    // A copy may have holes, which are no room: a write to one on a full disk would end the process.
    if (access == Access::Write && size_ > 0 && static_cast<size_t>(about.st_blocks) * 512 < size_)
      if (const int error = set_aside(file_, 0, size_); error != 0)
        fail("cannot set aside " + std::to_string(size_) + " bytes of disk, with " + free_space(path_) + " bytes free, for", error);
    if (size_ > 0) map(0, size_);
  } catch (...) {
    if (reserved_) munmap(reserved_, reserve_ + kHuge);
    close(file_);
    throw;
  }
}

MappedFile::~MappedFile() {
  munmap(reserved_, reserve_ + kHuge);
  close(file_);
}

void MappedFile::fail(const std::string& what, int code) const {
  throw DiskError(what + " " + path_ + ": " + std::strerror(code), code);
}

void MappedFile::map(size_t offset, size_t bytes) {
  const int shared = access_ == Access::Read ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  void* found = mmap(base_ + offset, bytes, PROT_READ | PROT_WRITE, shared | MAP_FIXED, file_, static_cast<off_t>(offset));
  if (found == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes of", errno);
  const bool outgrown = offset + bytes > large() && offset <= large();
  advise(outgrown ? 0 : offset, outgrown ? offset + bytes : bytes);
}

// A hint, which a system need not take.
void MappedFile::advise(size_t offset, size_t bytes) const {
#ifdef MADV_HUGEPAGE
  madvise(base_ + offset, bytes, offset + bytes > large() ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
#endif
  if (offset + bytes > large()) madvise(base_ + offset, bytes, MADV_RANDOM);
}

void MappedFile::grow(size_t size) {
  if (size <= size_) return;
  size = rounded(size, size > 4 * kHuge ? kHuge : kPage);
  if (size > reserve_) fail("no addresses are left for " + std::to_string(size) + " bytes of", ENOMEM);
  const size_t generous = std::min(reserve_, rounded(size_ + size_ / 8, size_ > 4 * kHuge ? kHuge : kPage));
  if (generous > size && extend(generous)) return;
  if (extend(size)) return;
  fail("the disk is full: " + std::to_string(size - size_) + " bytes more are needed, and " + free_space(path_) +
           " bytes are free, for",
       errno);
}

bool MappedFile::extend(size_t size) {
  if (const int error = set_aside(file_, size_, size - size_); error != 0) {
    if (ftruncate(file_, static_cast<off_t>(size_)) != 0) {}  // what was set aside of it; the first error is the one to tell
    errno = error;
    return false;
  }
  map(size_, size - size_);
  size_ = size;
  return true;
}

void MappedFile::shrink(size_t size) {
  size = rounded(size, kPage);
  if (size >= size_) return;
  mmap(base_ + size, size_ - size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (ftruncate(file_, static_cast<off_t>(size)) != 0) fail("cannot shorten", errno);
  size_ = size;
}

void refuse_truncated(const MappedFile& file, size_t wanted) {
  if (file.size() < wanted)
    throw DiskError(file.path() + " is truncated: it has " + std::to_string(file.size()) + " bytes, and the table needs " +
                        std::to_string(wanted) + "; restore a checkpoint into a new directory",
                    EINVAL);
}

}  // namespace hybridrec
