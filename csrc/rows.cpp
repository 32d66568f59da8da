#include "rows.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <stdexcept>

#include "kernels/kernels.h"
#include "thread_pool.h"

namespace hybridrec {

namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr int64_t kRowsPerTask = 4096;
constexpr uint64_t kRowsPerWrite = 1 << 15;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Pages::Pages(size_t bytes) : bytes_(round_up(bytes, bytes >= kHuge ? kHuge : 4096)) {
  if (bytes == 0) return;
  const size_t extra = bytes_ >= kHuge ? kHuge : 0;
  void* mapped = mmap(nullptr, bytes_ + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* start = static_cast<uint8_t*>(mapped);
  data_ = extra ? reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<size_t>(start), kHuge)) : start;
  if (extra) {
    if (data_ > start) munmap(start, data_ - start);
    const size_t tail = start + bytes_ + extra - (data_ + bytes_);
    if (tail) munmap(data_ + bytes_, tail);
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes_, MADV_HUGEPAGE);
#endif
  }
}

Pages::~Pages() {
  if (data_ && !lent_) munmap(data_, bytes_);
}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(lent_, other.lent_);
  return *this;
}

void Pages::touch() const {
  for (size_t at = 0; at < bytes_; at += 4096) {
    volatile uint8_t* byte = data_ + at;
    *byte = *byte;
  }
}

RowType row_type(const std::string& name) {
  if (name == "float32") return RowType::F32;
  if (name == "float16") return RowType::F16;
  if (name == "bfloat16") return RowType::BF16;
  throw std::invalid_argument("rows are float32, float16 or bfloat16, not " + name);
}

Init init_kind(const std::string& name) {
  if (name == "uniform") return Init::Uniform;
  if (name == "normal") return Init::Normal;
  if (name == "constant") return Init::Constant;
  throw std::invalid_argument("an initial value is uniform, normal or constant, not " + name);
}

void initial_rows(const RowSpec& spec, const int64_t* ids, int64_t n, uint8_t* to) {
  ThreadPool::instance().run((n + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t start = task * kRowsPerTask, count = std::min(kRowsPerTask, n - start);
    std::vector<uint32_t> slots(count);
    std::iota(slots.begin(), slots.end(), 0u);
    uint8_t* slab = to + start * spec.row_bytes();
    kernels().init_rows(spec, {&slab, spec.row_bytes(), 32}, slots.data(), ids + start, count);
  });
}

Rows::Rows(const RowSpec& spec, uint64_t most, bool one_slab, Home* home) : home_(home), spec_(spec), most_(most) {
  if (most > 0xFFFFFFFEull) throw std::length_error("a table in one memory has at most 2^32 - 2 rows");
  bits_ = 32;
  if (!one_slab)  // slabs of about one huge page of weights
    for (bits_ = 8; bits_ < 16 && (spec.row_bytes() << (bits_ + 1)) <= static_cast<int64_t>(kHuge);) ++bits_;
  slab_rows_ = std::clamp<uint64_t>(most, 1, uint64_t{1} << bits_);
  directories_.emplace_back(8 * ((most >> bits_) + 1));
  slabs_.resize(1);
}

void Rows::add_slabs(int column, int64_t stride, uint64_t count) {
  for (uint64_t slab = slabs_[column].size(); slab * slab_rows_ < count; ++slab) {
    const size_t bytes = slab_rows_ * stride;
    slabs_[column].push_back(home_ ? std::make_shared<Pages>(home_->slab(column, slab, bytes), bytes)
                                   : std::make_shared<Pages>(bytes));
    directory(column)[slab] = slabs_[column].back()->data();
  }
}

void Rows::grow(uint64_t size) {
  if (size <= size_) return;
  if (size > most_) throw std::length_error("a table does not grow past its capacity");
  add_slabs(0, row_bytes(), size);
  for (int k = 0; k < states(); ++k) add_slabs(k + 1, 4 * widths_[k], size);
  size_ = size;
}

void Rows::view(uint8_t* data, uint64_t size) {
  directory(0)[0] = data;
  size_ = size;
}

void Rows::touch() const {
  for (const auto& column : slabs_)
    for (const auto& slab : column) slab->touch();
}

void Rows::attach(std::vector<int64_t> widths, std::vector<float> fills) {
  if (home_) home_->attach(widths, fills, slabs_[0].size(), slab_rows_);
  add_states(std::move(widths), std::move(fills));
  for (int k = 0; k < states(); ++k)
    if (fills_[k] != 0) fill_state(k, 0, size_);  // fresh pages are zeros
  if (home_) home_->attached();
}

void Rows::reopen(uint64_t size, std::vector<int64_t> widths, std::vector<float> fills) {
  add_states(std::move(widths), std::move(fills));
  grow(size);
}

void Rows::add_states(std::vector<int64_t> widths, std::vector<float> fills) {
  directories_.resize(1);
  slabs_.resize(1);
  widths_ = std::move(widths);
  fills_ = std::move(fills);
  for (int k = 0; k < states(); ++k) {
    directories_.emplace_back(8 * ((most_ >> bits_) + 1));
    slabs_.emplace_back();
    add_slabs(k + 1, 4 * widths_[k], size_);
  }
}

void Rows::fill_state(int k, uint64_t first, uint64_t last) {
  const Column column = state(k);
  ThreadPool::instance().run((last - first + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const uint64_t start = first + task * kRowsPerTask, stop = std::min(start + kRowsPerTask, last);
    for (uint64_t slot = start; slot < stop; ++slot) {
      auto* values = reinterpret_cast<float*>(column.at(static_cast<uint32_t>(slot)));
      std::fill(values, values + widths_[k], fills_[k]);
    }
  });
}

void Rows::init(const uint32_t* slots, const int64_t* ids, int64_t n) {
  ThreadPool::instance().run((n + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t start = task * kRowsPerTask, stop = std::min(start + kRowsPerTask, n);
    kernels().init_rows(spec_, column(), slots + start, ids + start, stop - start);
    for (int k = 0; k < states(); ++k)
      for (int64_t i = start; i < stop; ++i) {
        auto* values = reinterpret_cast<float*>(state(k).at(slots[i]));
        std::fill(values, values + widths_[k], fills_[k]);
      }
  });
}

void Rows::init_all() {
  ThreadPool::instance().run((size_ + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    const int64_t start = task * kRowsPerTask;
    const int64_t n = std::min<int64_t>(kRowsPerTask, size_ - start);
    std::vector<uint32_t> slots(n);
    std::vector<int64_t> ids(n);
    for (int64_t i = 0; i < n; ++i) ids[i] = spec_.id_of(slots[i] = static_cast<uint32_t>(start + i));
    kernels().init_rows(spec_, column(), slots.data(), ids.data(), n);
  });
}

void Rows::write(uint64_t first, int64_t n, const uint8_t* values, const std::vector<const float*>& states) {
  // A task stays in one slab, where rows lie side by side; and no two first touch the same huge page, or both clear it.
  const uint64_t unit = std::min(slab_rows_, kRowsPerWrite), last = first + n;
  ThreadPool::instance().run((last + unit - 1) / unit - first / unit, [&](int64_t task, int) {
    const uint64_t begin = std::max(first, (first / unit + task) * unit);
    const uint64_t end = std::min(last, (begin / unit + 1) * unit);
    const auto slot = static_cast<uint32_t>(begin);
    const uint64_t from = begin - first, count = end - begin;
    std::memcpy(column().at(slot), values + from * row_bytes(), count * row_bytes());
    for (int k = 0; k < this->states(); ++k)
      if (states[k]) std::memcpy(state(k).at(slot), states[k] + from * widths_[k], 4 * count * widths_[k]);
      else std::fill_n(reinterpret_cast<float*>(state(k).at(slot)), count * widths_[k], fills_[k]);
  });
}

int64_t Rows::state_bytes() const {
  int64_t bytes = 0;
  for (int64_t width : widths_) bytes += 4 * width;
  return bytes;
}

size_t Rows::allocated() const {
  size_t bytes = 0;
  for (const auto& column : slabs_)
    for (const auto& slab : column) bytes += slab->bytes();
  return bytes;
}

}  // namespace hybridrec
