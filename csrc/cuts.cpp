#include "cuts.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "records.h"

namespace hybridrec {

using namespace record;

namespace {

constexpr size_t kMostCut = size_t{1} << 40;
constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

}  // namespace

// Each row may be kept twice: after a change that was undone it is kept again.
size_t Cuts::reserve() const {
  int64_t bytes = 8 + kStamped + files_.row_bytes();
  for (uint32_t k = 0; k < files_.live().states; ++k) bytes += 4 * files_.live().widths[k];
  return std::min<size_t>(kMostCut, 2 * files_.most() * bytes + (size_t{1} << 30));
}

void Cuts::open() {
  std::vector<std::string> names;
  for (const auto& found : std::filesystem::directory_iterator(files_.place().directory)) {
    const std::string name = found.path().filename();
    if (name.rfind("table.cut-", 0) == 0 && found.path().extension() != ".new") names.push_back(name.substr(10));
  }
  for (const std::string& name : names) {
    auto cut = std::make_unique<Cut>(path(name), name, files_.access(), reserve());
    if (cut->generation() == files_.live().generation) cuts_.push_back(std::move(cut));
  }
  std::sort(cuts_.begin(), cuts_.end(), [](const auto& a, const auto& b) { return a->number() < b->number(); });
}

std::vector<std::string> Cuts::names() const {
  std::vector<std::string> names;
  for (const auto& cut : cuts_) names.push_back(cut->name());
  return names;
}

Cut& Cuts::find(const std::string& name) const {
  for (const auto& cut : cuts_)
    if (cut->name() == name) return *cut;
  std::string names;
  for (const auto& cut : cuts_) names += (names.empty() ? "" : ", ") + cut->name();
  throw std::invalid_argument("table " + files_.place().name + " has no cut " + name + "; it has " + (names.empty() ? "none" : names));
}

void Cuts::refuse(const char* what) const {
  if (!cuts_.empty())
    throw std::invalid_argument("table " + files_.place().name + ": cut " + cuts_.front()->name() + " is there to go back to, so " +
                                what + " cannot be replaced; forget the cut first");
}

void Cuts::refuse_name(const std::string& name) const {
  if (name.empty() || name.size() > 64 || name.find_first_not_of(kLetters) != std::string::npos)
    throw std::invalid_argument("a cut's name is 1 to 64 letters, digits, - and _, not '" + name + "'");
  files_.refuse_reader("cuts");
  const auto taken = names();
  if (std::find(taken.begin(), taken.end(), name) != taken.end())
    throw std::invalid_argument("table " + files_.place().name + " has a cut " + name + " already; forget it first");
}

void Cuts::make(const std::string& name, const Sketch* sketch) {
  cuts_.push_back(Cut::make(path(name), name, files_.layout(), sketch ? sketch->data() : nullptr, sketch ? sketch->bytes() : 0, reserve()));
}

void Cuts::forget(const std::string& name) {
  const Cut& cut = find(name);
  files_.refuse_reader("cuts");
  std::remove(cut.path().c_str());
  cuts_.erase(std::find_if(cuts_.begin(), cuts_.end(), [&](const auto& other) { return other.get() == &cut; }));
}

void Cuts::forget_after(const Cut& cut) {
  while (cuts_.back()->number() > cut.number()) forget(cuts_.back()->name());
}

void Cuts::keep(const RowImages& images, const uint8_t* whole, const uint32_t* slots, const uint64_t* stamps, int64_t n) {
  const int64_t bytes = images.whole_bytes();
  for (const auto& cut : cuts_) {
    const auto wanted = [&](int64_t i) { return stamps[i] <= cut->number() && slots[i] < cut->given(); };
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += wanted(i);
    if (count == 0) continue;
    Entry* entry = cut->entries().add(Entry::kRows, static_cast<uint64_t>(count), count * bytes);
    uint8_t* to = entry->data();
    for (int64_t i = 0; i < n; ++i)
      if (wanted(i)) std::memcpy(to, whole + i * bytes, bytes), to += bytes;
    Entries::finish(entry);
  }
}

// A lookup is no change, but a row's scores are among what a cut goes back to. Whoever is told of a record that another
// thread has begun to touch has come later, so that the first entry has the scores of the cut.
void Cuts::keep_scores(uint32_t slot, uint8_t* record) {
  std::lock_guard lock(scores_);
  for (const auto& cut : cuts_) {
    const uint32_t scores[2] = {get(touched_in(record)), get(count_in(record))};
    if (slot >= cut->given() || scores[0] == kFree || scores[0] > cut->clock()) continue;
    Entry* entry = cut->entries().add(Entry::kScores, slot, sizeof scores);
    std::memcpy(entry->data(), scores, sizeof scores);
    Entries::finish(entry);
  }
}

}  // namespace hybridrec
