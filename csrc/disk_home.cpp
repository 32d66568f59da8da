#include "disk_home.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "records.h"

namespace hybridrec {

using namespace record;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLogReserve = size_t{1} << 36, kLogKept = size_t{64} << 20;
constexpr size_t kMostCut = size_t{1} << 40;
constexpr int64_t kBatch = 256, kAhead = 8;
constexpr uint64_t kHeaderFile = 1, kIndexFile = 2, kSketchFile = 3;  // what an entry of bytes is of, in its top byte

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// A line for all that must not differ, in the order in which a difference is told.
std::string describe(const RowSpec& spec, const Policy& policy, const Place& place) {
  constexpr const char *kTypes[] = {"float32", "float16", "bfloat16"}, *kInits[] = {"uniform", "normal", "constant"},
                       *kEvictions[] = {"none", "lru", "lfu", "ttl"};
  std::string text;
  const auto line = [&](const char* name, const std::string& value) { text += std::string(name) + "\t" + value + "\n"; };
  line("name", place.name);
  line("seed", std::to_string(place.seed));
  line("dim", std::to_string(spec.dim));
  line("dtype", kTypes[static_cast<int>(spec.type)]);
  line("init", kInits[static_cast<int>(spec.init)]);
  line("init scale", number_text(spec.scale));
  line("capacity", std::to_string(policy.capacity));
  line("eviction", kEvictions[static_cast<int>(policy.eviction)]);
  line("ttl steps", std::to_string(policy.ttl_steps));
  line("admission probability", number_text(policy.probability));
  line("admission count", std::to_string(policy.min_count));
  line("share index", std::to_string(spec.first));
  line("share count", std::to_string(spec.stride));
  line("first column", std::to_string(spec.column));
  return text;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    found.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

void refuse_difference(const std::string& directory, const std::string& found, const std::string& wanted) {
  const auto a = lines(found), b = lines(wanted);
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "", right = i < b.size() ? b[i] : "";
    if (left == right) continue;
    const std::string name = right.substr(0, right.find('\t'));
    const auto value = [](const std::string& line) { return line.substr(std::min(line.find('\t'), line.size() - 1) + 1); };
    throw std::invalid_argument("the table in " + directory + " has " + name + " " + value(left) + ", not " + value(right) +
                                "; give it another directory, or declare it as it was");
  }
}

void check_cut_name(const std::string& name) {
  const bool good = !name.empty() && name.size() <= 64 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == std::string::npos;
  if (!good) throw std::invalid_argument("a cut's name is 1 to 64 letters, digits, - and _, not '" + name + "'");
}

}  // namespace

// -- opening --------------------------------------------------------------------------------------------------

DiskHome::DiskHome(const RowSpec& spec, const Policy& policy, const Place& place)
    : place_(place), access_(place.read_only ? Access::Read : Access::Write), row_bytes_(spec.row_bytes()),
      most_(std::min<uint64_t>(policy.capacity, 0xFFFFFFFEull)) {
  const std::string text = describe(spec, policy, place);
  if (text.size() > sizeof(Head::text)) throw std::invalid_argument("a table's name on disk has at most 3000 bytes");
  try {
    lock();
    if (access_ == Access::Write && ::access(file("header").c_str(), F_OK) != 0) make(text);
    reopen(text);
  } catch (...) {
    if (directory_ >= 0) close(directory_);
    throw;
  }
}

DiskHome::~DiskHome() { close(directory_); }

std::unique_ptr<MappedFile> DiskHome::mapped(const std::string& name, size_t most) const {
  return std::make_unique<MappedFile>(file(name), access_, most);
}

void DiskHome::lock() {
  if (access_ == Access::Write) std::filesystem::create_directories(place_.directory);
  directory_ = ::open(place_.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_ < 0) throw DiskError("cannot open " + place_.directory + ": " + std::strerror(errno), errno);
  if (flock(directory_, (access_ == Access::Read ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0)
    throw DiskError("the table in " + place_.directory + " is open already, here or in another process; " +
                        (access_ == Access::Read ? "it can be read when no one writes to it" : "only one may write to it, and no one reads then"),
                    errno);
}

// A header appears by its name when the rest is there.
void DiskHome::make(const std::string& text) {
  for (const auto& found : std::filesystem::directory_iterator(place_.directory)) {
    const std::string name = found.path().filename();
    const bool ours = name == "table.header.new" || name == "table.records" || name == "table.rows" || name == "table.index" ||
                      name == "table.sketch" || name == "table.log";  // of one that was killed here
    if (!ours)
      throw std::invalid_argument(found.path().string() + " is there, and no table; name a directory that is empty or new");
  }
  for (const char* name : {"records", "rows", "sketch", "log"}) MappedFile(file(name), Access::Create, 0);
  MappedFile(file("index"), Access::Create, Buckets::kBytes).grow(Buckets::kBytes);
  {
    MappedFile header(file("header.new"), Access::Create, Layout::kBytes);
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
  if (std::rename(file("header.new").c_str(), file("header").c_str()) != 0)
    throw DiskError("cannot name " + file("header") + ": " + std::strerror(errno), errno);
}

void DiskHome::reopen(const std::string& text) {
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
                                std::to_string(head.sum()) + "; restore a checkpoint into a new directory");
  refuse_truncated(*header_, Layout::kBytes);
  refuse_difference(place_.directory, {head.text, head.text_bytes}, text);
  index_ = mapped("index", most_ / 10 * Buckets::kBytes * 8 + kSlack);
  refuse_truncated(*index_, Buckets::kBytes);
  sketch_ = mapped("sketch", size_t{1} << 28);
  log_ = std::make_unique<Entries>(file("log"), access_, kLogReserve);
  log_->use(0, &control().end);
  if (control().open) undo_bytes();
  refuse_damage();
  records_ = mapped("records", for_all(kStamped));
  rows_ = mapped("rows", for_all(row_bytes_));
  for (uint32_t k = 0; k < live().states; ++k)
    states_.push_back(mapped("state-" + std::to_string(live().generation) + "-" + std::to_string(k), for_all(4 * live().widths[k])));
  buckets_ = std::make_unique<Buckets>(*index_);
}

void DiskHome::refuse_damage() const {
  const std::string remedy = "; restore a checkpoint into a new directory";
  if (control().emptying) return;  // nothing of it is used
  if (live().checksum != live().sum() || live().states > 2 || live().rule_bytes > sizeof(Live::rule))
    throw std::invalid_argument(header_->path() + " is damaged: its checksum is " + std::to_string(live().checksum) +
                                ", and its content has " + std::to_string(live().sum()) + remedy);
  uint64_t used = 0;
  for (size_t s = 0; s < kStripes; ++s) {
    const Stripe& stripe = layout().stripes()[s];
    used += stripe.used;
    if (stripe.at % Buckets::kBytes != 0 || stripe.count == 0 || stripe.used > uint64_t{stripe.count} * 12)
      throw std::invalid_argument(header_->path() + " is damaged: stripe " + std::to_string(s) + " of the index is none" + remedy);
    refuse_truncated(*index_, stripe.at + stripe.count * Buckets::kBytes);
  }
  if (used != live().standing.size || live().standing.given < live().standing.size || live().standing.given > most_)
    throw std::invalid_argument(header_->path() + " is damaged: its index has " + std::to_string(used) + " rows, and the table " +
                                std::to_string(live().standing.size) + remedy);
}

void DiskHome::settle(HashTable& table) {
  table_ = &table;
  open_cuts();
  if (control().emptying) {
    table.reopen(widths(), fills());
    opening_ = false;
    control().open = 0;
    table.clear();
    return;
  }
  buckets_->begin_anew(layout().stripes(), stripe_count_);
  table.reopen(widths(), fills());
  if (control().open) {
    undo_rows();
    live().changes = control().open;  // no number is used twice
    seal();
  }
  in_order();
  control().open = 0;
  opening_ = false;
  if (access_ == Access::Read) return;
  for (const auto& found : std::filesystem::directory_iterator(place_.directory)) {  // of a process killed while it made them
    const std::string name = found.path().filename(), current = "table.state-" + std::to_string(live().generation) + "-";
    const bool stale_state = name.rfind("table.state-", 0) == 0 && name.rfind(current, 0) != 0;
    const bool half_cut = name.rfind("table.cut-", 0) == 0 && found.path().extension() == ".new";
    if (stale_state || half_cut) std::filesystem::remove(found.path());
  }
}

void DiskHome::open_cuts() {
  std::vector<std::string> names;
  for (const auto& found : std::filesystem::directory_iterator(place_.directory)) {
    const std::string name = found.path().filename();
    if (name.rfind("table.cut-", 0) == 0 && found.path().extension() != ".new") names.push_back(name.substr(10));
  }
  for (const std::string& name : names) {
    const size_t reserve = std::min<size_t>(kMostCut, 2 * most_ * image_bytes() + (size_t{1} << 30));
    auto cut = std::make_unique<Cut>(file("cut-" + name), name, access_, reserve);
    if (cut->generation() == live().generation) cuts_.push_back(std::move(cut));
  }
  std::sort(cuts_.begin(), cuts_.end(), [](const auto& a, const auto& b) { return a->number() < b->number(); });
}

// -- memory ---------------------------------------------------------------------------------------------------

uint8_t* DiskHome::slab(int column, uint64_t number, size_t bytes) {
  auto& states = next_states_.empty() ? states_ : next_states_;
  MappedFile& from = column == kRecords ? *records_ : column == 0 ? *rows_ : *states[column - 1];
  const size_t unit = rounded(bytes, kPage);
  if (opening_) refuse_truncated(from, (number + 1) * unit);
  from.grow((number + 1) * unit);
  return from.data() + number * unit;
}

uint8_t* DiskHome::sketch(size_t bytes) {
  if (access_ == Access::Write && live().changes == 0) sketch_->grow(bytes);  // of a new table
  refuse_truncated(*sketch_, bytes);
  return sketch_->data();
}

Stripe* DiskHome::stripes(size_t count) {
  stripe_count_ = count;
  return layout().stripes();
}

void DiskHome::attach(const std::vector<int64_t>& widths, const std::vector<float>& fills, uint64_t slabs, uint64_t slab_rows) {
  refuse_reader("optimizer state");
  refuse_cuts("optimizer state");
  if (widths.size() > 2) throw std::invalid_argument("a table on disk has at most two columns of state");
  std::vector<std::unique_ptr<MappedFile>> made;
  for (size_t k = 0; k < widths.size(); ++k) {
    const std::string name = "state-" + std::to_string(live().generation + 1) + "-" + std::to_string(k);
    made.push_back(std::make_unique<MappedFile>(file(name), Access::Create, for_all(4 * widths[k])));
    made.back()->grow(slabs * rounded(slab_rows * 4 * widths[k], kPage));
  }
  next_states_ = std::move(made), next_widths_ = widths, next_fills_ = fills;
}

void DiskHome::attached() {
  begin(0);
  Live& now = live();
  ++now.generation;
  now.states = static_cast<uint32_t>(next_widths_.size());
  std::copy(next_widths_.begin(), next_widths_.end(), now.widths);
  std::copy(next_fills_.begin(), next_fills_.end(), now.fills);
  const std::string rule = next_rule_.value_or("");
  now.rule_bytes = static_cast<uint32_t>(rule.size());
  std::memcpy(now.rule, rule.data(), rule.size());
  commit({});
  for (const auto& old : states_) std::remove(old->path().c_str());
  states_ = std::move(next_states_);
  next_states_.clear(), next_rule_.reset();
}

void DiskHome::set_rule(const std::string& rule) {
  if (rule.size() > sizeof(Live::rule)) throw std::invalid_argument("a rule on disk has at most 1024 bytes");
  next_rule_ = rule;
}

// -- changes --------------------------------------------------------------------------------------------------

int64_t DiskHome::image_bytes() const {
  int64_t bytes = 8 + kStamped;
  for (uint32_t k = 0; k < live().states; ++k) bytes += 4 * live().widths[k];
  return bytes + row_bytes_;
}

void DiskHome::begin(uint64_t rows) {
  refuse_reader("rows");
  if (depth_++ > 0) return;
  try {
    log_->restart();
    log_->make_room(rows * image_bytes() + (rows / kBatch + 64) * sizeof(Entry) + sizeof(Live) + sizeof(Figures));
  } catch (...) {
    depth_ = 0;
    throw;
  }
  number_ = live().changes + 1;
  begun_given_ = live().standing.given;
  in_order();
  control().open = number_;
  in_order();
  keep(&live(), sizeof(Live));
  keep(figures(), sizeof(Figures));
}

void DiskHome::commit(const std::optional<Tag>& tag) {
  if (depth_ == 0) return;  // undone as a whole already
  if (tag) write_tag(*tag);
  if (--depth_ > 0) return;
  live().changes = number_;
  seal();
  end_change();
  buckets_->settle();
}

void DiskHome::end_change() {
  in_order();
  control().open = 0;
  in_order();
  if (log_->file().size() > 4 * kLogKept) log_->file().shrink(kLogKept);
}

void DiskHome::abort() {
  if (depth_ == 0) return;
  depth_ = 0;
  const uint64_t removals = live().standing.removals;
  undo_bytes();
  undo_rows();
  live().standing.removals = removals + 1;  // slots found meanwhile hold no longer
  live().changes = number_;                 // no number is used twice
  seal();
  end_change();
  buckets_->begin_anew(layout().stripes(), stripe_count_);
}

void DiskHome::emptying() {
  refuse_reader("rows");
  refuse_cuts("all rows");
  control().emptying = 1;
  in_order();
}

void DiskHome::whole() {
  if (!control().emptying) return;
  seal();
  buckets_->begin_anew(layout().stripes(), stripe_count_);
  in_order();
  control().emptying = 0;
  in_order();
}

uint64_t DiskHome::where(const void* bytes) const {
  const auto* at = static_cast<const uint8_t*>(bytes);
  const auto within = [&](const MappedFile& file) { return at >= file.data() && at < file.data() + file.size(); };
  if (within(*index_)) return kIndexFile << 56 | static_cast<uint64_t>(at - index_->data());
  if (within(*header_)) return kHeaderFile << 56 | static_cast<uint64_t>(at - header_->data());
  return kSketchFile << 56 | static_cast<uint64_t>(at - sketch_->data());
}

uint8_t* DiskHome::address(uint64_t where) const {
  const MappedFile& file = where >> 56 == kIndexFile ? *index_ : where >> 56 == kHeaderFile ? *header_ : *sketch_;
  return file.data() + (where & ((uint64_t{1} << 56) - 1));
}

void DiskHome::keep(const void* bytes, size_t n) {
  if (control().emptying) return;
  Entry* entry = log_->add(Entry::kBytes, where(bytes), n);
  std::memcpy(entry->data(), bytes, n);
  Entries::finish(entry);
}

// The columns of a table, found once for many rows.
struct DiskHome::Parts {
  Column records, rows, states[2];
  int count;

  explicit Parts(const HashTable& table) : records(table.records()), rows(table.rows.column()), count(table.rows.states()) {
    for (int k = 0; k < count; ++k) states[k] = table.rows.state(k);
  }

  uint8_t* image(uint8_t* to, uint32_t slot) const {
    const uint64_t number = slot;
    std::memcpy(to, &number, 8);
    std::memcpy(to + 8, records.at(slot), kStamped);
    to = copied(to + 8 + kStamped, rows, slot);
    for (int k = 0; k < count; ++k) to = copied(to, states[k], slot);
    return to;
  }

  void fetch(uint32_t slot) const {
    fetch(rows, slot);
    for (int k = 0; k < count; ++k) fetch(states[k], slot);
  }

 private:
  // Rows are short: a call for each would cost more than the copy.
  static uint8_t* copied(uint8_t* to, const Column& column, uint32_t slot) {
    const uint8_t* from = column.at(slot);
    int64_t left = column.stride;
    for (; left >= 64; left -= 64, to += 64, from += 64) std::memcpy(to, from, 64);
    for (; left >= 16; left -= 16, to += 16, from += 16) std::memcpy(to, from, 16);
    if (left > 0) std::memcpy(to, from, left);
    return to + left;
  }
  static void fetch(const Column& column, uint32_t slot) {
    for (int64_t byte = 0; byte < column.stride; byte += 64) __builtin_prefetch(column.at(slot) + byte, 1);
  }
};

const uint8_t* DiskHome::read_image(const uint8_t* from) const {
  const Rows& rows = table_->rows;
  uint64_t slot;
  const auto get = [&](void* to, size_t bytes) {
    std::memcpy(to, from, bytes);
    from += bytes;
  };
  get(&slot, 8);
  const auto at = static_cast<uint32_t>(slot);
  get(table_->records().at(at), kStamped);
  get(rows.column().at(at), rows.row_bytes());
  for (int k = 0; k < rows.states(); ++k) get(rows.state(k).at(at), 4 * rows.width(k));
  return from;
}

void DiskHome::keep_rows(const uint32_t* slots, int64_t n) {
  if (control().emptying) return;
  if (depth_ == 0) throw std::logic_error("rows on disk change outside of a change");
  const Parts parts(*table_);
  const Column& records = parts.records;
  const uint64_t given = live().standing.given;
  for (int64_t first = 0; first < n; first += kBatch) {
    uint32_t mine[kBatch];
    uint64_t stamps[kBatch];
    int64_t count = 0;
    const int64_t last = std::min(n, first + kBatch);
    for (int64_t i = first; i < last; ++i)
      if (slots[i] < given) __builtin_prefetch(records.at(slots[i]), 1);
    for (int64_t i = first; i < last; ++i) {
      const uint32_t slot = slots[i];
      if (slot >= given) continue;  // nobody's, or none
      uint64_t* stamp = stamp_in(records.at(slot));
      if (*stamp == number_) continue;
      if (slot >= begun_given_) *stamp = number_;  // was nobody's before
      else mine[count] = slot, stamps[count++] = *stamp;
    }
    if (count == 0) continue;
    Entry* entry = log_->add(Entry::kRows, static_cast<uint64_t>(count), count * image_bytes());
    uint8_t* to = entry->data();
    for (int64_t i = 0; i < std::min(kAhead, count); ++i) parts.fetch(mine[i]);
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) parts.fetch(mine[i + kAhead]);
      to = parts.image(to, mine[i]);
    }
    Entries::finish(entry);
    if (!cuts_.empty()) keep_for_cuts(entry->data(), mine, stamps, count);
    for (int64_t i = 0; i < count; ++i) *stamp_in(records.at(mine[i])) = number_;
  }
}

void DiskHome::undo_bytes() {
  auto entries = log_->all();
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
    if ((*entry)->kind == Entry::kBytes) std::memcpy(address((*entry)->where), (*entry)->data(), (*entry)->bytes);
}

void DiskHome::undo_rows() {
  auto entries = log_->all();
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const uint8_t* from = (*entry)->data();
    if ((*entry)->kind == Entry::kScores) put_scores(**entry);
    if ((*entry)->kind == Entry::kRows)
      for (uint64_t i = 0; i < (*entry)->where; ++i) from = read_image(from);
  }
}

void DiskHome::put_scores(const Entry& entry) const {
  std::memcpy(table_->records().at(static_cast<uint32_t>(entry.where)) + 8, entry.data(), 8);
}

// -- tags -----------------------------------------------------------------------------------------------------

void DiskHome::write_tag(const Tag& tag) {
  TagSlot* tags = layout().tags();
  uint64_t at = 0;
  while (at < kTags && tags[at].used && tags[at].tag.source != tag.source) ++at;
  if (at == kTags)
    throw std::length_error("table " + place_.name + " has tags of " + std::to_string(kTags) + " sources; forget one of them first");
  keep(&tags[at], sizeof(TagSlot));
  tags[at] = {tag, 1};
}

std::vector<Tag> DiskHome::tags() const {
  std::vector<Tag> found;
  for (uint64_t at = 0; at < kTags && layout().tags()[at].used; ++at) found.push_back(layout().tags()[at].tag);
  return found;
}

void DiskHome::forget_tag(uint64_t source) {
  TagSlot* tags = layout().tags();
  uint64_t at = 0, last = 0;
  while (last < kTags && tags[last].used) ++last;
  while (at < last && tags[at].tag.source != source) ++at;
  if (at == last) return;
  begin(0);
  keep(&tags[at], sizeof(TagSlot));
  keep(&tags[last - 1], sizeof(TagSlot));
  tags[at] = tags[last - 1];
  tags[last - 1] = {};
  commit({});
}

// -- cuts -----------------------------------------------------------------------------------------------------

void DiskHome::refuse_cuts(const char* what) const {
  if (!cuts_.empty())
    throw std::invalid_argument("table " + place_.name + ": cut " + cuts_.front()->name() + " is there to go back to, so " + what +
                                " cannot be replaced; forget the cut first");
}

void DiskHome::refuse_reader(const char* what) const {
  if (read_only())
    throw std::invalid_argument("the table in " + place_.directory + " is open for reading, so " + what + " cannot change");
}

Cut& DiskHome::find_cut(const std::string& name) const {
  for (const auto& cut : cuts_)
    if (cut->name() == name) return *cut;
  std::string names;
  for (const auto& cut : cuts_) names += (names.empty() ? "" : ", ") + cut->name();
  throw std::invalid_argument("table " + place_.name + " has no cut " + name + "; it has " + (names.empty() ? "none" : names));
}

std::vector<std::string> DiskHome::cuts() const {
  std::vector<std::string> names;
  for (const auto& cut : cuts_) names.push_back(cut->name());
  return names;
}

void DiskHome::cut(const std::string& name) {
  check_cut_name(name);
  refuse_reader("cuts");
  const auto taken = cuts();
  if (std::find(taken.begin(), taken.end(), name) != taken.end())
    throw std::invalid_argument("table " + place_.name + " has a cut " + name + " already; forget it first");
  begin(0);  // a change of its own, whose number tells which cut was first
  commit({});
  const Sketch* sketch = table_->sketch();
  const size_t reserve = std::min<size_t>(kMostCut, 2 * most_ * image_bytes() + (size_t{1} << 30));
  cuts_.push_back(Cut::make(file("cut-" + name), name, layout(), sketch ? sketch->data() : nullptr,
                            sketch ? sketch->bytes() : 0, reserve));
}

void DiskHome::forget_cut(const std::string& name) {
  Cut& cut = find_cut(name);
  refuse_reader("cuts");
  std::remove(cut.path().c_str());
  cuts_.erase(std::find_if(cuts_.begin(), cuts_.end(), [&](const auto& other) { return other.get() == &cut; }));
}

// Of rows that have not changed since a cut, what they are: `images` one after another.
void DiskHome::keep_for_cuts(const uint8_t* images, const uint32_t* slots, const uint64_t* stamps, int64_t n) {
  const size_t bytes = image_bytes();
  for (const auto& cut : cuts_) {
    const auto wanted = [&](int64_t i) { return stamps[i] <= cut->number() && slots[i] < cut->given(); };
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += wanted(i);
    if (count == 0) continue;
    Entry* entry = cut->entries().add(Entry::kRows, static_cast<uint64_t>(count), count * bytes);
    uint8_t* to = entry->data();
    for (int64_t i = 0; i < n; ++i)
      if (wanted(i)) std::memcpy(std::exchange(to, to + bytes), images + i * bytes, bytes);
    Entries::finish(entry);
  }
}

// A lookup is no change, but a row's scores are among what a cut goes back to; and a lookup within a change is undone with
// its counts. Whoever is told of a record that another
// thread has begun to touch has come later, so that the first entry has the scores of the cut.
void DiskHome::keep_scores(uint32_t slot, uint8_t* record) {
  std::lock_guard lock(scores_);
  const uint32_t scores[2] = {get(touched_in(record)), get(count_in(record))};
  const auto add = [&](Entries& to) {
    Entry* entry = to.add(Entry::kScores, slot, sizeof scores);
    std::memcpy(entry->data(), scores, sizeof scores);
    Entries::finish(entry);
  };
  if (counting()) add(*log_);
  for (const auto& cut : cuts_)
    if (slot < cut->given() && scores[0] != kFree && scores[0] <= cut->clock()) add(cut->entries());
}

void DiskHome::roll_back(const std::string& name) {
  Cut& cut = find_cut(name);
  refuse_reader("rows");
  const auto entries = cut.entries().all();
  std::vector<uint32_t> slots;  // that may be different
  for (const Entry* entry : entries) {
    if (entry->kind == Entry::kScores) slots.push_back(static_cast<uint32_t>(entry->where));
    else
      for (uint64_t i = 0; i < entry->where; ++i) slots.push_back(static_cast<uint32_t>(load<uint64_t>(entry->data() + i * image_bytes())));
  }
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  Change change(*table_, slots.size());
  const Column records = table_->records();
  std::vector<uint64_t> stamps;
  for (const uint32_t slot : slots) stamps.push_back(*stamp_in(records.at(slot)));
  table_->changing(slots.data(), static_cast<int64_t>(slots.size()));
  for (size_t i = 0; i < slots.size(); ++i) *stamp_in(records.at(slots[i])) = stamps[i];  // going back is no change of a row
  const auto ids_of = [&] {
    std::vector<std::pair<int64_t, uint32_t>> found;
    for (const uint32_t slot : slots)
      if (get(touched_in(records.at(slot))) != kFree) found.emplace_back(id_in(records.at(slot)), slot);
    return found;
  };
  auto gone = ids_of();
  for (uint64_t slot = cut.given(); slot < live().standing.given; ++slot) {  // that came since
    const auto at = static_cast<uint32_t>(slot);
    table_->changing(&at, 1);
    if (get(touched_in(records.at(at))) != kFree) gone.emplace_back(id_in(records.at(at)), at);
  }
  table_->unindex_rows(gone);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const uint8_t* from = (*entry)->data();
    if ((*entry)->kind == Entry::kScores) put_scores(**entry);
    else
      for (uint64_t i = 0; i < (*entry)->where; ++i) from = read_image(from);
  }
  table_->index_rows(ids_of());
  const uint64_t removals = live().standing.removals + 1;
  live().standing = cut.standing();
  live().standing.removals = removals;  // slots found before hold no longer
  std::memcpy(static_cast<void*>(figures()), cut.figures(), sizeof(Figures));
  keep(layout().tags(), kTags * sizeof(TagSlot));
  std::memcpy(layout().tags(), cut.tags(), kTags * sizeof(TagSlot));
  if (cut.sketch_bytes() > 0) {
    keep(sketch_->data(), cut.sketch_bytes());
    std::memcpy(sketch_->data(), cut.sketch(), cut.sketch_bytes());
  }
  change.done();
  cut.entries().restart();
  while (cuts_.back()->number() > cut.number()) forget_cut(cuts_.back()->name());
}

}  // namespace hybridrec
