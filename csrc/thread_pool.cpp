#include "thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <thread>
#include <vector>

namespace hybridrec {

namespace {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waking a sleeping thread takes as long as a small kernel, so a thread spins this long before it sleeps.
constexpr auto kSpin = std::chrono::microseconds(50);

template <typename Condition>
bool spin_until(Condition condition) {
  const auto stop = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < stop);
  return condition();
}

}  // namespace

class ThreadPool::Crew {
 public:
  explicit Crew(int workers) {
    for (int worker = 1; worker <= workers; ++worker) threads_.emplace_back([this, worker] { serve(worker); });
  }

  ~Crew() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  // False where the crew works for somebody else.
  bool try_run(int64_t tasks, const Work& work) {
    std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy) return false;
    {
      std::lock_guard lock(mutex_);
      work_ = &work;
      tasks_ = tasks;
      next_ = 0;
      failure_ = nullptr;
      open_ = true;
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    drain(0);
    std::unique_lock lock(mutex_);
    open_ = false;  // who has not come by now need not come: nobody waits for a thread that sleeps
    const auto finished = [this] { return working_.load(std::memory_order_acquire) == 0; };
    if (!finished()) {
      lock.unlock();
      spin_until(finished);
      lock.lock();
      done_.wait(lock, finished);
    }
    std::exception_ptr failure;
    std::swap(failure, failure_);
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
    return true;
  }

 private:
  void drain(int worker) {
    try {
      for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) (*work_)(task, worker);
    } catch (...) {
      next_ = tasks_;
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void serve(int worker) {
    uint64_t seen = 0;
    const auto called = [&] { return stop_ || job_.load(std::memory_order_acquire) != seen; };
    for (;;) {
      if (!spin_until(called)) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, called);
      }
      if (stop_) return;
      {
        std::lock_guard lock(mutex_);
        seen = job_.load(std::memory_order_relaxed);
        if (!open_) continue;
        ++working_;
      }
      drain(worker);
      std::lock_guard lock(mutex_);
      if (--working_ == 0) done_.notify_one();
    }
  }

  std::mutex busy_;  // held by the caller that the crew works for
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> job_{0};  // number of the present job: a change calls the workers
  std::atomic<int> working_{0};  // workers in it; changed under the mutex
  bool open_ = false;            // whether workers may still join it
  std::atomic<bool> stop_{false};
  const Work* work_ = nullptr;
  int64_t tasks_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

ThreadPool& ThreadPool::instance() {
  static auto* pool = new ThreadPool;  // never destroyed: its threads may outlive static objects
  return *pool;
}

void ThreadPool::resize(int threads) {
  std::shared_ptr<Crew> old;  // joined after the lock is gone, when its last caller is done
  std::lock_guard lock(mutex_);
  disown();
  threads = std::clamp(threads, 1, kMostThreads);
  if (threads_ != threads) old = std::move(crew_);
  threads_ = threads;
}

int ThreadPool::threads() {
  std::lock_guard lock(mutex_);
  return threads_;
}

void ThreadPool::disown() {
  if (process_ == getpid()) return;
  if (crew_) new std::shared_ptr<Crew>(std::move(crew_));  // threads of the parent: there is nobody to join
  process_ = getpid();
}

std::shared_ptr<ThreadPool::Crew> ThreadPool::crew() {
  std::lock_guard lock(mutex_);
  disown();
  if (!crew_ && threads_ > 1) crew_ = std::make_shared<Crew>(threads_ - 1);
  return crew_;
}

void ThreadPool::run(int64_t tasks, const Work& work, bool small) {
  if (tasks > 1 && !small) {
    const auto helpers = crew();
    if (helpers && helpers->try_run(tasks, work)) return;
  }
  for (int64_t task = 0; task < tasks; ++task) work(task, 0);
}

}  // namespace hybridrec
