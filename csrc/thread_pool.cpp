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
      working_ = static_cast<int>(threads_.size());
      job_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    drain(0);
    const auto finished = [this] { return working_.load(std::memory_order_acquire) == 0; };
    if (!spin_until(finished)) {
      std::unique_lock lock(mutex_);
      done_.wait(lock, finished);
    }
    std::exception_ptr failure;
    {
      std::lock_guard lock(mutex_);
      std::swap(failure, failure_);
    }
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
      seen = job_.load(std::memory_order_acquire);
      drain(worker);
      if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard lock(mutex_);
        done_.notify_one();
      }
    }
  }

  std::mutex busy_;  // held by the caller that the crew works for
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<uint64_t> job_{0};  // number of the present job: a change calls the workers
  std::atomic<int> working_{0};
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
  if (threads_ != std::max(threads, 1)) old = std::move(crew_);
  threads_ = std::max(threads, 1);
}

int ThreadPool::threads() {
  std::lock_guard lock(mutex_);
  return threads_;
}

std::shared_ptr<ThreadPool::Crew> ThreadPool::crew() {
  std::lock_guard lock(mutex_);
  if (process_ != getpid()) {
    if (crew_) new std::shared_ptr<Crew>(std::move(crew_));  // threads of the parent: there is nobody to join
    process_ = getpid();
  }
  if (!crew_ && threads_ > 1) crew_ = std::make_shared<Crew>(threads_ - 1);
  return crew_;
}

void ThreadPool::run(int64_t tasks, const Work& work) {
  if (tasks > 1) {
    const auto helpers = crew();
    if (helpers && helpers->try_run(tasks, work)) return;
  }
  for (int64_t task = 0; task < tasks; ++task) work(task, 0);
}

}  // namespace hybridrec
