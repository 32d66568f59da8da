#include "host_memory.h"

#include <stdexcept>

#if defined(__linux__)

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace hybridrec {

namespace {

constexpr int64_t kPage = 64 << 10;   // blocks are made of these
constexpr uint64_t kRing = 1024;      // messages of a channel that may be on their way
constexpr size_t kMappings = 64;      // blocks of a peer's channel that stay mapped
constexpr int kSpins = 200;           // looks before a waiter sleeps
constexpr long kNap = 100'000'000;    // nanoseconds until it looks whether the others live

int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

std::string names(const std::vector<int>& ranks) {
  std::string out = ranks.size() > 1 ? "ranks " : "rank ";
  for (size_t i = 0; i < ranks.size(); ++i) out += (i ? ", " : "") + std::to_string(ranks[i]);
  return out;
}

// Shared between processes, so not the private kind.
void sleep_on(std::atomic<uint32_t>& word, uint32_t seen) {
  timespec nap{0, kNap};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &nap, nullptr, 0);
}

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// A message as it lies in its block: this, then a Part for each rank, then what is in them.
struct alignas(64) Header {
  std::atomic<uint32_t> left;  // ranks that have not taken it
};

struct Part {
  int64_t at, bytes;
};

Part* parts(uint8_t* block) { return reinterpret_cast<Part*>(block + sizeof(Header)); }

int64_t head_bytes(int world) { return sizeof(Header) + rounded(world * sizeof(Part), 64); }

// Numbers that several ranks read. All are 0 in a new file.
struct Entry {
  std::atomic<uint64_t> number, offset, bytes;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

struct HostExchange::Mapping {
  uint8_t* data;
  int64_t bytes;

  Mapping(int file, int64_t offset, int64_t bytes) : bytes(bytes) {
    void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, offset);
    if (found == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes of shared memory");
    data = static_cast<uint8_t*>(found);
  }
  ~Mapping() { munmap(data, bytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
};

// One channel in the control area of its sender.
struct alignas(64) HostExchange::Line {
  std::atomic<uint64_t> published;  // the last message
  std::atomic<uint32_t> bell;       // changes with it
  alignas(64) Entry ring[kRing];
};

struct alignas(64) HostExchange::Control {
  std::atomic<uint64_t> token;
  std::atomic<uint32_t> closed;  // this rank sends no more
};

struct HostExchange::Block {
  int64_t offset;
  Mapping memory;
  Header& header() { return *reinterpret_cast<Header*>(memory.data); }
};

struct HostExchange::Sending {
  std::mutex mutex;
  std::vector<std::unique_ptr<Block>> blocks;
};

// Another rank: its control area, and the blocks of it that are mapped here.
struct HostExchange::Peer {
  struct Seen {
    std::mutex mutex;
    std::unordered_map<int64_t, std::unique_ptr<Mapping>> blocks;  // by offset
  };
  int file = -1, life = -1;
  std::unique_ptr<Mapping> control;
  std::vector<Seen> seen;  // by channel

  explicit Peer(int channels) : seen(channels) {}
  ~Peer() {
    if (file >= 0) close(file);
    if (life >= 0) close(life);
  }
  Control& head() const { return *reinterpret_cast<Control*>(control->data); }
  bool dead() const {
    pollfd asked{life, POLLIN, 0};
    return poll(&asked, 1, 0) > 0;
  }
};

HostExchange::HostExchange(int rank, int world, int channels, double timeout)
    : rank_(rank), world_(world), channels_(channels), timeout_(timeout) {
  end_ = rounded(sizeof(Control) + channels * sizeof(Line), kPage);
  file_ = memfd_create("hybridrec", MFD_CLOEXEC);
  if (file_ < 0) fail("cannot make a file in memory");
  try {
    if (ftruncate(file_, end_) != 0) fail("cannot size a file in memory");
    own_ = std::make_unique<Mapping>(file_, 0, end_);
    if (getrandom(&token_, sizeof token_, 0) != sizeof token_) fail("cannot draw a token");
  } catch (...) {
    close(file_);
    throw;
  }
  reinterpret_cast<Control*>(own_->data)->token.store(token_);
  for (int channel = 0; channel < channels; ++channel) sending_.push_back(std::make_unique<Sending>());
}

HostExchange::~HostExchange() {
  auto& control = *reinterpret_cast<Control*>(own_->data);
  control.closed.store(1);
  for (int channel = 0; channel < channels_; ++channel) {
    line(control, channel).bell.fetch_add(1);
    wake(line(control, channel).bell);
  }
  close(file_);
}

int64_t HostExchange::process() const { return getpid(); }

HostExchange::Line& HostExchange::line(Control& control, int channel) const {
  return reinterpret_cast<Line*>(&control + 1)[channel];
}

void HostExchange::meet(const std::vector<int64_t>& processes, const std::vector<int>& files,
                        const std::vector<uint64_t>& tokens) {
  std::vector<std::unique_ptr<Peer>> found(world_);
  for (int rank = 0; rank < world_; ++rank) {
    if (rank == rank_) continue;
    auto peer = std::make_unique<Peer>(channels_);
    const std::string who = "the memory of rank " + std::to_string(rank);
    peer->life = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(processes[rank]), 0));
    if (peer->life < 0) fail("cannot watch rank " + std::to_string(rank));
    const std::string path = "/proc/" + std::to_string(processes[rank]) + "/fd/" + std::to_string(files[rank]);
    peer->file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (peer->file < 0) fail("cannot open " + who);
    struct stat about{};
    const int64_t bytes = own_->bytes;
    if (fstat(peer->file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size < bytes)
      throw std::runtime_error(who + " is something else");
    peer->control = std::make_unique<Mapping>(peer->file, 0, bytes);
    if (peer->head().token.load() != tokens[rank]) throw std::runtime_error(who + " is something else");
    found[rank] = std::move(peer);
  }
  peers_ = std::move(found);
}

// A block that all have read and that is large enough; those that are too small make room for it.
HostExchange::Block& HostExchange::free_block(Sending& sending, int64_t bytes) {
  auto& blocks = sending.blocks;
  const auto is_free = [](Block& block) { return block.header().left.load(std::memory_order_acquire) == 0; };
  Block* best = nullptr;
  for (auto& block : blocks)
    if (block->memory.bytes >= bytes && is_free(*block) && (!best || block->memory.bytes < best->memory.bytes))
      best = block.get();
  if (best) return *best;
  auto made = new_block(bytes);
  for (size_t i = 0; i < blocks.size();) {
    if (blocks[i]->memory.bytes >= bytes || !is_free(*blocks[i])) {
      ++i;
      continue;
    }
    std::lock_guard<std::mutex> lock(growing_);
    held_ -= blocks[i]->memory.bytes;
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, blocks[i]->offset, blocks[i]->memory.bytes);
    blocks.erase(blocks.begin() + i);
  }
  blocks.push_back(std::move(made));
  return *blocks.back();
}

std::unique_ptr<HostExchange::Block> HostExchange::new_block(int64_t bytes) {
  bytes = rounded(bytes + bytes / 4, kPage);
  std::lock_guard<std::mutex> lock(growing_);
  if (const int error = posix_fallocate(file_, end_, bytes); error != 0) {  // now, since a page that lacks later kills
    errno = error;
    fail("cannot share " + std::to_string(bytes) + " bytes of memory between ranks");
  }
  std::unique_ptr<Block> made(new Block{end_, Mapping(file_, end_, bytes)});
  end_ += bytes;
  held_ += bytes;
  return made;
}

int64_t HostExchange::held() const {
  std::lock_guard<std::mutex> lock(growing_);
  return held_;
}

uint64_t HostExchange::post(int channel, const uint8_t* message, const std::vector<int64_t>& to) {
  Sending& sending = *sending_.at(channel);
  Line& own = line(*reinterpret_cast<Control*>(own_->data), channel);
  std::lock_guard<std::mutex> lock(sending.mutex);
  int64_t bytes = head_bytes(world_);
  for (int rank = 0; rank < world_; ++rank)
    if (rank != rank_) bytes += rounded(to.at(rank), 64);
  Block& block = free_block(sending, bytes);
  int64_t at = head_bytes(world_);
  for (int rank = 0; rank < world_; message += to[rank++]) {
    if (rank == rank_) continue;
    parts(block.memory.data)[rank] = {at, to[rank]};
    if (to[rank] > 0) std::memcpy(block.memory.data + at, message, to[rank]);
    at += rounded(to[rank], 64);
  }
  block.header().left.store(world_ - 1, std::memory_order_relaxed);
  const uint64_t number = own.published.load(std::memory_order_relaxed) + 1;
  Entry& entry = own.ring[number % kRing];
  entry.number.store(number, std::memory_order_relaxed);
  entry.offset.store(block.offset, std::memory_order_relaxed);
  entry.bytes.store(block.memory.bytes, std::memory_order_relaxed);
  own.published.store(number, std::memory_order_release);
  own.bell.fetch_add(1);
  wake(own.bell);
  return number;
}

bool HostExchange::ready(int channel, uint64_t number) const {
  for (const auto& peer : peers_)
    if (peer && line(peer->head(), channel).published.load(std::memory_order_acquire) < number) return false;
  return true;
}

void HostExchange::take(int channel, uint64_t number, uint8_t* received, const std::vector<int64_t>& of) {
  wait_for(channel, number);
  for (int rank = 0; rank < world_; received += of[rank++])
    if (rank != rank_) copy_from(rank, channel, number, received, of.at(rank));
}

void HostExchange::wait_for(int channel, uint64_t number) {
  const auto start = std::chrono::steady_clock::now();
  for (const auto& peer : peers_) {
    if (!peer) continue;
    Line& theirs = line(peer->head(), channel);
    for (int looks = 0;; ++looks) {
      const uint32_t bell = theirs.bell.load();
      if (theirs.published.load(std::memory_order_acquire) >= number) break;
      if (looks < kSpins) {
        relax();
        continue;
      }
      check_alive(channel, number);
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > timeout_) give_up(channel, number);
      sleep_on(theirs.bell, bell);
    }
  }
}

std::vector<int> HostExchange::absent(int channel, uint64_t number, bool gone) const {
  std::vector<int> found;
  for (int rank = 0; rank < world_; ++rank) {
    if (!peers_[rank]) continue;
    const bool left = !gone || peers_[rank]->head().closed.load() != 0 || peers_[rank]->dead();
    if (left && line(peers_[rank]->head(), channel).published.load() < number) found.push_back(rank);
  }
  return found;
}

void HostExchange::check_alive(int channel, uint64_t number) const {
  const auto gone = absent(channel, number, true);
  if (!gone.empty()) throw std::runtime_error("connection closed by peer: " + names(gone) + " left or ended");
}

void HostExchange::give_up(int channel, uint64_t number) const {
  const auto late = absent(channel, number, false);
  if (late.empty()) return;
  throw std::runtime_error("timed out waiting " + std::to_string(static_cast<int64_t>(timeout_)) + " s for a message from " +
                           names(late));
}

void HostExchange::copy_from(int rank, int channel, uint64_t number, uint8_t* to, int64_t bytes) {
  Peer& peer = *peers_[rank];
  const Entry& entry = line(peer.head(), channel).ring[number % kRing];
  if (entry.number.load(std::memory_order_relaxed) != number)
    throw std::runtime_error("message " + std::to_string(number) + " of rank " + std::to_string(rank) +
                             " was not taken in time: " + std::to_string(kRing) + " have followed it");
  auto& seen = peer.seen[channel];
  std::lock_guard<std::mutex> lock(seen.mutex);
  const int64_t offset = entry.offset.load(std::memory_order_relaxed);
  auto found = seen.blocks.find(offset);
  if (found == seen.blocks.end()) {
    if (seen.blocks.size() >= kMappings) seen.blocks.clear();
    const int64_t size = entry.bytes.load(std::memory_order_relaxed);
    found = seen.blocks.emplace(offset, std::make_unique<Mapping>(peer.file, offset, size)).first;
  }
  uint8_t* block = found->second->data;
  const Part part = parts(block)[rank_];
  if (part.bytes != bytes)
    throw std::runtime_error("rank " + std::to_string(rank) + " sent " + std::to_string(part.bytes) + " bytes where rank " +
                             std::to_string(rank_) + " expects " + std::to_string(bytes) +
                             "; all ranks must look up the same features in the same order");
  if (bytes > 0) std::memcpy(to, block + part.at, bytes);
  reinterpret_cast<Header*>(block)->left.fetch_sub(1, std::memory_order_release);
}

}  // namespace hybridrec

#else  // ranks talk through Gloo there

namespace hybridrec {

struct HostExchange::Mapping {};
struct HostExchange::Sending {};
struct HostExchange::Peer {};

HostExchange::HostExchange(int rank, int world, int channels, double timeout)
    : rank_(rank), world_(world), channels_(channels), timeout_(timeout) {
  throw std::runtime_error("processes of this system share no memory");
}
HostExchange::~HostExchange() = default;
int64_t HostExchange::process() const { return 0; }
void HostExchange::meet(const std::vector<int64_t>&, const std::vector<int>&, const std::vector<uint64_t>&) {}
uint64_t HostExchange::post(int, const uint8_t*, const std::vector<int64_t>&) { return 0; }
bool HostExchange::ready(int, uint64_t) const { return false; }
void HostExchange::take(int, uint64_t, uint8_t*, const std::vector<int64_t>&) {}
int64_t HostExchange::held() const { return 0; }

}  // namespace hybridrec

#endif
