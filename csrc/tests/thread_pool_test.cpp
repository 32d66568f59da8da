#include "thread_pool.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"

namespace hybridrec {
namespace {

ThreadPool& pool() { return ThreadPool::instance(); }

TEST("every task runs once, whatever the number of threads and tasks") {
  for (int threads : {1, 2, 3, 8}) {
    pool().resize(threads);
    CHECK(pool().threads() == threads);
    for (int64_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(tasks);
      pool().run(tasks, [&](int64_t task, int) { ++runs[task]; });
      for (const auto& count : runs) CHECK(count == 1);
    }
  }
}

TEST("no two tasks of a call run at once with the same worker") {
  pool().resize(4);
  std::atomic<int> busy[4] = {}, wrong{0};
  for (int round = 0; round < 50; ++round)
    pool().run(40, [&](int64_t, int worker) {
      wrong += worker < 0 || worker >= 4 || busy[worker]++ != 0;
      std::this_thread::yield();
      --busy[worker];
    });
  CHECK(wrong == 0);
}

TEST("what tasks write is there for the caller") {
  pool().resize(4);
  for (int64_t round = 0; round < 500; ++round) {
    std::vector<int64_t> out(64);
    pool().run(64, [&](int64_t task, int) { out[task] = round + task; });
    for (int64_t task = 0; task < 64; ++task) CHECK(out[task] == round + task);
  }
}

TEST("the exception of a task reaches the caller, and the pool works on") {
  for (int threads : {1, 4}) {
    pool().resize(threads);
    for (int round = 0; round < 20; ++round) {
      const auto work = [](int64_t task, int) {
        if (task == 5) throw std::out_of_range("task five");
      };
      CHECK_THROWS(std::out_of_range, pool().run(100, work), "task five");
      std::atomic<int> runs{0};
      pool().run(10, [&](int64_t, int) { ++runs; });
      CHECK(runs == 10);
    }
  }
}

TEST("two callers at once both get their work done") {
  pool().resize(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int caller = 0; caller < 2; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) pool().run(20, [&](int64_t task, int) { sum += task; });
    });
  for (auto& caller : callers) caller.join();
  CHECK(sum == 2 * 300 * 190);
}

TEST("a task may itself call the pool") {
  pool().resize(3);
  std::atomic<int> runs{0};
  pool().run(10, [&](int64_t, int) { pool().run(10, [&](int64_t, int) { ++runs; }); });
  CHECK(runs == 100);
}

TEST("the pool may change its size while others use it") {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> wrong{0};
  std::thread resizer([&] {
    for (int round = 0; !stop; ++round) pool().resize(1 + round % 4);
  });
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> runs{0};
    pool().run(16, [&](int64_t, int) { ++runs; });
    wrong += runs != 16;
  }
  stop = true;
  resizer.join();
  CHECK(wrong == 0);
}

TEST("threads that sleep between calls wake up") {
  pool().resize(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> runs{0};
    pool().run(8, [&](int64_t, int) { ++runs; });
    CHECK(runs == 8);
  }
}

#if !defined(__SANITIZE_THREAD__)  // whose own threads do not survive a fork

// Whether `work` comes to an end in a forked child, within seconds.
template <typename Work>
bool ends_in_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    _exit(0);
  }
  for (int waited = 0; waited < 500; ++waited) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return false;
}

TEST("a forked child has a pool of its own") {
  pool().resize(3);
  pool().run(10, [](int64_t, int) {});
  CHECK(ends_in_child([] {
    std::atomic<int> runs{0};
    pool().run(10, [&](int64_t, int) { ++runs; });
    if (runs != 10) _exit(1);
  }));
}

TEST("a forked child may change the size of its pool first") {
  pool().resize(3);
  pool().run(10, [](int64_t, int) {});
  CHECK(ends_in_child([] {
    pool().resize(2);
    std::atomic<int> runs{0};
    pool().run(10, [&](int64_t, int) { ++runs; });
    if (runs != 10) _exit(1);
  }));
}

#endif

}  // namespace
}  // namespace hybridrec
