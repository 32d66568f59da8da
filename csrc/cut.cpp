#include "cut.h"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace hybridrec {

namespace {

constexpr char kCutMagic[16] = "hybridrec cut";

}  // namespace

std::unique_ptr<Cut> Cut::make(const std::string& path, const std::string& name, const Layout& table, const uint8_t* sketch,
                               size_t sketch_bytes, size_t reserve) {
  const std::string beside = path + ".new";
  const size_t bytes = (kSketchAt + sketch_bytes + 7) / 8 * 8;
  {
    MappedFile file(beside, Access::Create, bytes);
    file.grow(bytes);
    auto& head = *reinterpret_cast<Head*>(file.data());
    std::memcpy(head.magic, kCutMagic, sizeof head.magic);
    head.format = kFormat;
    head.number = table.live()->changes;
    head.generation = table.live()->generation;
    head.sketch_bytes = sketch_bytes;
    head.standing = table.live()->standing;
    std::memcpy(head.figures, static_cast<void*>(table.figures()), sizeof head.figures);
    std::memcpy(file.data() + kTagsAt, table.tags(), kTags * sizeof(TagSlot));
    if (sketch) std::memcpy(file.data() + kSketchAt, sketch, sketch_bytes);
    head.end = bytes;
    head.checksum = xxh64(reinterpret_cast<const uint8_t*>(&head.number), offsetof(Head, end) - offsetof(Head, number), head.format);
  }
  if (std::rename(beside.c_str(), path.c_str()) != 0)
    throw DiskError("cannot name " + path + ": " + std::strerror(errno), errno);
  return std::make_unique<Cut>(path, name, Access::Write, reserve);
}

Cut::Cut(const std::string& path, std::string name, Access access, size_t reserve)
    : path_(path), name_(std::move(name)), entries_(path, access, reserve) {
  check();
  entries_.use((kSketchAt + head().sketch_bytes + 7) / 8 * 8, &head().end);
}

uint64_t Cut::sum() const {
  return xxh64(reinterpret_cast<const uint8_t*>(&head().number), offsetof(Head, end) - offsetof(Head, number), head().format);
}

void Cut::check() const {
  const MappedFile& file = entries_.file();
  refuse_truncated(file, kSketchAt);
  if (std::memcmp(head().magic, kCutMagic, sizeof kCutMagic) != 0 || head().format != kFormat || head().checksum != sum())
    throw DiskError(path_ + " is no cut of this table, or damaged; move it elsewhere", EINVAL);
  refuse_truncated(file, head().end);
}

uint32_t Cut::clock() const {
  uint32_t clock;
  std::memcpy(&clock, head().figures, sizeof clock);  // comes first
  return clock;
}

}  // namespace hybridrec
