#include "capture.h"

#include <algorithm>
#include <cstring>
#include <shared_mutex>

#include "table.h"

namespace hybridrec {

Capture::Capture(std::shared_ptr<Table> table) : table_(std::move(table)) {
  std::unique_lock lock(table_->lock());
  records_ = table_->copy_records();
  for (int k = 0; k < table_->rows.states(); ++k) widths_.push_back(table_->rows.width(k));
  kept_row_ = table_->rows.row_bytes() + table_->rows.state_bytes();
  place_pages_ = Pages(4 * records_.slots);
  places_ = reinterpret_cast<uint32_t*>(place_pages_.data());
  blocks_.reserve(records_.slots / kBlockRows + 1);
  table_->captures.push_back(this);
}

Capture::~Capture() {
  std::unique_lock lock(table_->lock());
  auto& captures = table_->captures;
  captures.erase(std::find(captures.begin(), captures.end(), this));
}

void Capture::keep(const uint32_t* slots, int64_t n) {
  const auto count = static_cast<uint64_t>(std::count_if(slots, slots + n, [&](uint32_t slot) { return wanted(slot); }));
  if (count == 0) return;
  uint64_t place = used_.fetch_add(count);
  {
    std::lock_guard lock(growing_);
    while (blocks_.size() * kBlockRows < place + count) blocks_.emplace_back(kBlockRows * kept_row_);
  }
  const Rows& rows = table_->rows;
  for (int64_t i = 0; i < n; ++i) {
    if (!wanted(slots[i])) continue;
    uint8_t* to = kept(static_cast<uint32_t>(place));
    std::memcpy(to, rows.column().at(slots[i]), rows.row_bytes());
    to += rows.row_bytes();
    for (int k = 0; k < rows.states(); ++k) {
      std::memcpy(to, rows.state(k).at(slots[i]), 4 * rows.width(k));
      to += 4 * rows.width(k);
    }
    places_[slots[i]] = static_cast<uint32_t>(++place);
  }
}

void Capture::keep_all() {
  std::vector<uint32_t> slots;
  for (uint64_t slot = passed_; slot < records_.slots; ++slot) slots.push_back(static_cast<uint32_t>(slot));
  keep(slots.data(), static_cast<int64_t>(slots.size()));
}

void Capture::gather(const uint32_t* slots, int64_t n, uint8_t* out, const std::vector<float*>& states) {
  std::shared_lock lock(table_->lock());
  const Rows& rows = table_->rows;
  const int64_t bytes = rows.row_bytes();
  // State widths are those of the moment: a change of the rule has kept all rows, and left nothing to read here.
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t place = places_[slots[i]];
    const uint8_t* from = place ? kept(place - 1) : rows.column().at(slots[i]);
    std::memcpy(out + i * bytes, from, bytes);
    from += bytes;
    for (size_t k = 0; k < states.size(); ++k) {
      const int64_t width = widths_[k];
      std::memcpy(states[k] + i * width, place ? from : rows.state(static_cast<int>(k)).at(slots[i]), 4 * width);
      from += 4 * width;
    }
  }
  if (n > 0) passed_ = uint64_t{slots[n - 1]} + 1;
}

}  // namespace hybridrec
