#include "host_memory.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace hybridrec {
namespace {

using World = std::vector<std::unique_ptr<HostExchange>>;

// Ranks that have met, all in this process.
World world_of(int world, double timeout = 20, int channels = 2) {
  World all;
  std::vector<int64_t> processes;
  std::vector<int> files;
  std::vector<uint64_t> tokens;
  for (int rank = 0; rank < world; ++rank) {
    all.push_back(std::make_unique<HostExchange>(rank, world, channels, timeout));
    processes.push_back(all[rank]->process());
    files.push_back(all[rank]->file());
    tokens.push_back(all[rank]->token());
  }
  for (auto& each : all) each->meet(processes, files, tokens);
  return all;
}

// Bytes from one rank to another in a round: every rank can tell them.
int64_t bytes_of(int from, int to, int round) {
  std::mt19937 draw(1000 * round + 10 * from + to);
  const int kind = draw() % 4;
  return kind == 0 ? 0 : kind == 1 ? draw() % 100 : kind == 2 ? draw() % 20'000 : round % 7 == 0 ? draw() % 2'000'000 : 8;
}

uint8_t byte_of(int from, int to, int round, int64_t i) { return static_cast<uint8_t>(31 * from + 17 * to + round + i); }

struct Message {
  std::vector<uint8_t> data, received;
  std::vector<int64_t> to, of;
  uint64_t number = 0;
  int round = 0;
};

Message posted(HostExchange& mine, int rank, int world, int channel, int round) {
  Message out;
  out.round = round;
  for (int other = 0; other < world; ++other) {
    out.to.push_back(bytes_of(rank, other, round));
    out.of.push_back(bytes_of(other, rank, round));
    for (int64_t i = 0; i < out.to.back(); ++i) out.data.push_back(byte_of(rank, other, round, i));
    out.received.insert(out.received.end(), out.of.back(), 0);
  }
  out.number = mine.post(channel, out.data.data(), out.to);
  std::fill(out.data.begin(), out.data.end(), 0);  // it is the sender's again
  return out;
}

// How many bytes of what others sent are wrong.
int64_t taken(HostExchange& mine, int rank, int channel, Message& message) {
  mine.take(channel, message.number, message.received.data(), message.of);
  int64_t wrong = 0;
  const uint8_t* at = message.received.data();
  for (int from = 0; from < static_cast<int>(message.of.size()); at += message.of[from++])
    for (int64_t i = 0; i < message.of[from]; ++i)
      wrong += at[i] != (from == rank ? 0 : byte_of(from, rank, message.round, i));
  return wrong;
}

void on_all(int world, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(work, rank);
  for (auto& each : threads) each.join();
}

TEST("messages of any size reach their ranks, round for round") {
  for (int world : {2, 3}) {
    World all = world_of(world);
    std::atomic<int64_t> wrong{0};
    on_all(world, [&](int rank) {
      for (int round = 0; round < 60; ++round) {
        Message message = posted(*all[rank], rank, world, 0, round);
        wrong += taken(*all[rank], rank, 0, message);
      }
    });
    CHECK(wrong == 0);
  }
}

TEST("two channels of a rank are used by two threads at once") {
  World all = world_of(2);
  std::atomic<int64_t> wrong{0};
  on_all(4, [&](int thread) {
    const int rank = thread / 2, channel = thread % 2;
    for (int round = 0; round < 60; ++round) {
      Message message = posted(*all[rank], rank, 2, channel, 100 * channel + round);
      wrong += taken(*all[rank], rank, channel, message);
    }
  });
  CHECK(wrong == 0);
}

TEST("messages may be taken late and in any order, and nobody waits to send") {
  World all = world_of(2);
  std::vector<std::vector<Message>> sent(2);
  for (int rank = 0; rank < 2; ++rank)
    for (int round = 0; round < 50; ++round) sent[rank].push_back(posted(*all[rank], rank, 2, 0, round));
  std::mt19937 draw(5);
  for (int rank = 0; rank < 2; ++rank) {
    std::shuffle(sent[rank].begin(), sent[rank].end(), draw);
    for (auto& message : sent[rank]) CHECK(taken(*all[rank], rank, 0, message) == 0);
  }
}

TEST("memory is used again, and small blocks make room for large ones") {
  World all = world_of(2);
  std::vector<uint8_t> data(4 << 20), received(4 << 20);
  const auto round = [&](int64_t bytes) {
    uint64_t number = 0;
    for (auto& each : all) number = each->post(0, data.data(), {bytes, bytes});
    for (auto& each : all) each->take(0, number, received.data(), {bytes, bytes});
  };
  for (int64_t bytes : {0, 1000, 100'000, 1'000'000, 2'000'000}) round(bytes);
  const int64_t held = all[0]->held();
  CHECK(held >= 2'000'000);
  CHECK(held <= 3'000'000);
  for (int again = 0; again < 3000; ++again) round(1000 + again * 500);  // more than there are places in the ring
  CHECK(all[0]->held() == held);
}

TEST("whether a message is there can be asked without waiting") {
  World all = world_of(3);
  const uint8_t data[24] = {};
  CHECK(!all[0]->ready(0, 1));
  all[1]->post(0, data, {8, 8, 8});
  CHECK(!all[0]->ready(0, 1));
  all[2]->post(0, data, {8, 8, 8});
  CHECK(all[0]->ready(0, 1));
  CHECK(!all[0]->ready(1, 1));
  CHECK(!all[1]->ready(0, 1));
}

TEST("ranks that do not come are named") {
  World all = world_of(4, 0.3);
  uint8_t data[32] = {}, received[32];
  for (int rank : {0, 2}) all[rank]->post(0, data, {8, 8, 8, 8});
  CHECK_THROWS(std::runtime_error, all[0]->take(0, 1, received, {8, 8, 8, 8}), "timed out waiting 0 s for a message from ranks 1, 3");
}

TEST("a rank that leaves ends the waiting, and what it has sent can still be taken") {
  World all = world_of(2);
  std::vector<uint8_t> data(200, 7), received(200);
  all[0]->post(0, data.data(), {100, 100});
  all[1]->post(0, data.data(), {100, 100});
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    all[1].reset();
  });
  CHECK_THROWS(std::runtime_error, all[0]->take(1, 1, received.data(), {100, 100}), "connection closed by peer: rank 1 left or ended");
  leaving.join();
  all[0]->take(0, 1, received.data(), {100, 100});
  CHECK(received[100] == 7);
}

TEST("sizes that do not agree are an error that names both") {
  World all = world_of(2);
  uint8_t data[64] = {}, received[64];
  for (auto& each : all) each->post(0, data, {8, 8});
  CHECK_THROWS(std::runtime_error, all[0]->take(0, 1, received, {8, 16}), "rank 1 sent 8 bytes where rank 0 expects 16");
}

TEST("a message that is asked for much too late is an error") {
  World all = world_of(2);
  uint8_t data[16] = {}, received[16];
  for (int round = 0; round < 1025; ++round) all[1]->post(0, data, {8, 8});
  CHECK_THROWS(std::runtime_error, all[0]->take(0, 1, received, {8, 8}), "was not taken in time");
}

TEST("memory of another world is refused") {
  HostExchange one(0, 2, 2, 1), other(1, 2, 2, 1);
  CHECK_THROWS(std::runtime_error, one.meet({one.process(), other.process()}, {one.file(), other.file()}, {one.token(), other.token() + 1}),
               "the memory of rank 1 is something else");
  CHECK_THROWS(std::runtime_error, one.meet({one.process(), other.process()}, {one.file(), 0}, {one.token(), other.token()}), "rank 1");
}

#if !defined(__SANITIZE_THREAD__)  // whose own threads do not survive a fork

TEST("a process that is killed ends the waiting, and what it has sent can still be taken") {
  int there[2], back[2];
  CHECK(pipe(there) == 0 && pipe(back) == 0);
  HostExchange mine(0, 2, 1, 20);
  const int64_t parent = mine.process();
  std::vector<uint8_t> data(300'000, 9), received(300'000);
  const std::vector<int64_t> half{150'000, 150'000};
  const pid_t child = fork();
  if (child == 0) {
    HostExchange theirs(1, 2, 1, 20);
    const uint64_t about[2] = {static_cast<uint64_t>(theirs.file()), theirs.token()};
    char ok = 0;
    if (write(there[1], about, sizeof about) != sizeof about || read(back[0], &ok, 1) != 1) _exit(1);
    theirs.meet({parent, getpid()}, {mine.file(), theirs.file()}, {mine.token(), theirs.token()});
    theirs.post(0, data.data(), half);
    theirs.take(0, 1, received.data(), half);
    if (write(there[1], "k", 1) != 1) _exit(1);
    pause();
  }
  uint64_t about[2];
  char ok = 0;
  CHECK(read(there[0], about, sizeof about) == sizeof about);
  mine.meet({parent, child}, {mine.file(), static_cast<int>(about[0])}, {mine.token(), about[1]});
  CHECK(write(back[1], "k", 1) == 1);
  mine.post(0, data.data(), half);
  CHECK(read(there[0], &ok, 1) == 1);
  kill(child, SIGKILL);  // it stays a zombie until it is waited for
  const auto start = std::chrono::steady_clock::now();
  CHECK_THROWS(std::runtime_error, mine.take(0, 2, received.data(), half), "rank 1 left or ended");
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  mine.take(0, 1, received.data(), half);
  CHECK(received[150'000] == 9 && received[299'999] == 9);
  waitpid(child, nullptr, 0);
  for (int end : {there[0], there[1], back[0], back[1]}) close(end);
}

#endif

}  // namespace
}  // namespace hybridrec
