#include "disk_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <stdexcept>

#include "buckets.h"
#include "records.h"

namespace hybridrec {

namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kHeaderFile = 1, kIndexFile = 2, kSketchFile = 3;  // in the top byte of `where`
constexpr const char* kRemedy = "; restore a checkpoint into a new directory";

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

DiskFiles::DiskFiles(const RowSpec& spec, const Policy& policy, const Place& place)
    : place_(place), access_(place.read_only ? Access::Read : Access::Write), row_bytes_(spec.row_bytes()),
      most_(std::min<uint64_t>(policy.capacity, 0xFFFFFFFEull)) {
  const std::string text = describe(spec, policy, place);
  try {
    lock();
    if (access_ == Access::Write && ::access(path("header").c_str(), F_OK) != 0) make(text);
    open(text);
  } catch (...) {
    if (directory_ >= 0) close(directory_);
    throw;
  }
}

DiskFiles::~DiskFiles() { close(directory_); }

std::unique_ptr<MappedFile> DiskFiles::mapped(const std::string& name, size_t most) const {
  return std::make_unique<MappedFile>(path(name), access_, most);
}

void DiskFiles::refuse_reader(const char* what) const {
  if (access_ == Access::Read)
    throw std::invalid_argument("the table in " + place_.directory + " is open for reading, so " + what + " cannot change");
}

// -- opening --------------------------------------------------------------------------------------------------

void DiskFiles::lock() {
  if (access_ == Access::Write) std::filesystem::create_directories(place_.directory);
  directory_ = ::open(place_.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_ < 0) throw DiskError("cannot open " + place_.directory + ": " + std::strerror(errno), errno);
  if (flock(directory_, (access_ == Access::Read ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0)
    throw DiskError("the table in " + place_.directory + " is open already, here or in another process; " +
                        (access_ == Access::Read ? "it can be read when no one writes to it" : "only one may write to it, and no one reads then"),
                    errno);
}

// A header appears by its name when the rest is there.
void DiskFiles::make(const std::string& text) const {
  for (const auto& found : std::filesystem::directory_iterator(place_.directory)) {
    const std::string name = found.path().filename();
    const bool ours = name == "table.header.new" || name == "table.records" || name == "table.rows" || name == "table.index" ||
                      name == "table.sketch" || name == "table.log";  // of one that was killed here
    if (!ours)
      throw std::invalid_argument(found.path().string() + " is there, and no table; name a directory that is empty or new");
  }
  for (const char* name : {"records", "rows", "sketch", "log"}) MappedFile(path(name), Access::Create, 0);
  MappedFile(path("index"), Access::Create, Buckets::kBytes).grow(Buckets::kBytes);
  {
    MappedFile header(path("header.new"), Access::Create, Layout::kBytes);
    header.grow(Layout::kBytes);
    const Layout layout(header.data());
    std::memcpy(layout.head()->magic, kMagic, sizeof kMagic);
    layout.head()->format = kFormat;
    layout.head()->text_bytes = static_cast<uint32_t>(text.size());
    std::memcpy(layout.head()->text, text.data(), text.size());
    layout.head()->checksum = layout.head()->sum();
    new (layout.live()) Live{};
    layout.live()->checksum = layout.live()->sum();
    std::fill(layout.stripes(), layout.stripes() + kStripes, Stripe{0, 1, 0});
  }
  if (std::rename(path("header.new").c_str(), path("header").c_str()) != 0)
    throw DiskError("cannot name " + path("header") + ": " + std::strerror(errno), errno);
}

void DiskFiles::open(const std::string& text) {
  header_ = mapped("header", Layout::kBytes);
  const std::string where = header_->path();
  const Head& head = *layout().head();
  if (header_->size() < sizeof(Head) || std::memcmp(head.magic, kMagic, sizeof kMagic) != 0)
    throw std::invalid_argument(where + " is no header of a table; name a directory that is empty or new");
  if (head.format != kFormat)
    throw std::invalid_argument(where + " has format " + std::to_string(head.format) + ", and this version reads format " +
                                std::to_string(kFormat) + "; open it with the version that wrote it, and save a checkpoint");
  if (head.text_bytes > sizeof head.text || head.checksum != head.sum())
    throw std::invalid_argument(where + " is damaged: its checksum is " + std::to_string(head.checksum) + ", and its content has " +
                                std::to_string(head.sum()) + kRemedy);
  refuse_truncated(*header_, Layout::kBytes);
  refuse_difference(place_.directory, {head.text, head.text_bytes}, text);
  index_ = mapped("index", most_ / 10 * Buckets::kBytes * 8 + kSlack);
  refuse_truncated(*index_, Buckets::kBytes);
  sketch_ = mapped("sketch", size_t{1} << 28);
}

void DiskFiles::open_rows() {
  refuse_damage();
  records_ = mapped("records", for_all(record::kStamped));
  rows_ = mapped("rows", for_all(row_bytes_));
  for (uint32_t k = 0; k < live().states; ++k)
    states_.push_back(mapped(state_name(live().generation, k), for_all(4 * live().widths[k])));
}

void DiskFiles::refuse_damage() const {
  if (control().emptying) return;  // nothing of it is used
  if (live().checksum != live().sum() || live().states > 2 || live().rule_bytes > sizeof(Live::rule))
    throw std::invalid_argument(header_->path() + " is damaged: its checksum is " + std::to_string(live().checksum) +
                                ", and its content has " + std::to_string(live().sum()) + kRemedy);
  uint64_t used = 0;
  for (size_t s = 0; s < kStripes; ++s) {
    const Stripe& stripe = layout().stripes()[s];
    used += stripe.used;
    if (stripe.at % Buckets::kBytes != 0 || stripe.count == 0 || stripe.used > uint64_t{stripe.count} * 12)
      throw std::invalid_argument(header_->path() + " is damaged: stripe " + std::to_string(s) + " of the index is none" + kRemedy);
    refuse_truncated(*index_, stripe.at + stripe.count * Buckets::kBytes);
  }
  if (used != live().standing.size || live().standing.given < live().standing.size || live().standing.given > most_)
    throw std::invalid_argument(header_->path() + " is damaged: its index has " + std::to_string(used) + " rows, and the table " +
                                std::to_string(live().standing.size) + kRemedy);
}

void DiskFiles::settle() {
  opening_ = false;
  if (access_ == Access::Write) remove_leavings();
}

// Of a process killed while it made them.
void DiskFiles::remove_leavings() const {
  const std::string current = "table.state-" + std::to_string(live().generation) + "-";
  for (const auto& found : std::filesystem::directory_iterator(place_.directory)) {
    const std::string name = found.path().filename();
    const bool stale_state = name.rfind("table.state-", 0) == 0 && name.rfind(current, 0) != 0;
    const bool half_cut = name.rfind("table.cut-", 0) == 0 && found.path().extension() == ".new";
    if (stale_state || half_cut) std::filesystem::remove(found.path());
  }
}

// -- memory ---------------------------------------------------------------------------------------------------

uint8_t* DiskFiles::slab(int column, uint64_t number, size_t bytes) {
  auto& states = next_states_.empty() ? states_ : next_states_;
  MappedFile& from = column == Home::kRecords ? *records_ : column == 0 ? *rows_ : *states[column - 1];
  const size_t unit = rounded(bytes, kPage);
  if (opening_) refuse_truncated(from, (number + 1) * unit);
  from.grow((number + 1) * unit);
  return from.data() + number * unit;
}

uint8_t* DiskFiles::sketch(size_t bytes) {
  if (access_ == Access::Write && live().changes == 0) sketch_->grow(bytes);  // of a new table
  refuse_truncated(*sketch_, bytes);
  return sketch_->data();
}

std::string DiskFiles::state_name(uint64_t generation, size_t k) const {
  return "state-" + std::to_string(generation) + "-" + std::to_string(k);
}

void DiskFiles::make_states(const std::vector<int64_t>& widths, uint64_t slabs, uint64_t slab_rows) {
  std::vector<std::unique_ptr<MappedFile>> made;
  for (size_t k = 0; k < widths.size(); ++k) {
    const std::string file = path(state_name(live().generation + 1, k));
    made.push_back(std::make_unique<MappedFile>(file, Access::Create, for_all(4 * widths[k])));
    made.back()->grow(slabs * rounded(slab_rows * 4 * widths[k], kPage));
  }
  next_states_ = std::move(made);
}

void DiskFiles::take_states() {
  for (const auto& old : states_) std::remove(old->path().c_str());
  states_ = std::move(next_states_);
  next_states_.clear();
}

uint64_t DiskFiles::where(const void* bytes) const {
  const auto* at = static_cast<const uint8_t*>(bytes);
  const auto within = [&](const MappedFile& file) { return at >= file.data() && at < file.data() + file.size(); };
  if (within(*index_)) return kIndexFile << 56 | static_cast<uint64_t>(at - index_->data());
  if (within(*header_)) return kHeaderFile << 56 | static_cast<uint64_t>(at - header_->data());
  return kSketchFile << 56 | static_cast<uint64_t>(at - sketch_->data());
}

uint8_t* DiskFiles::address(uint64_t where) const {
  const MappedFile& file = where >> 56 == kIndexFile ? *index_ : where >> 56 == kHeaderFile ? *header_ : *sketch_;
  return file.data() + (where & ((uint64_t{1} << 56) - 1));
}

}  // namespace hybridrec
