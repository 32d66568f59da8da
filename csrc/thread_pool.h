// The threads of the embedding kernels. One pool per process, sized by the caller; the calling thread works too.
// A call that finds the pool busy with another call runs its tasks on its own thread, so nothing ever waits in line.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace hybridrec {

class ThreadPool {
 public:
  using Work = std::function<void(int64_t task, int worker)>;
  static constexpr int kMostThreads = 1024;

  static ThreadPool& instance();

  void resize(int threads);
  int threads();

  // Runs work(task, worker) for every task in [0, tasks), in any order, and returns when all are done.
  // 0 <= worker < kMostThreads, and no two tasks of a call run at once with the same worker. The first exception is
  // thrown again, after which the rest of the tasks may not have run. Where all of it is not worth waking a thread,
  // `small` runs it here.
  void run(int64_t tasks, const Work& work, bool small = false);

 private:
  class Crew;
  std::shared_ptr<Crew> crew();
  void disown();  // the crew of the parent, in a child; mutex_ is held

  std::mutex mutex_;
  std::shared_ptr<Crew> crew_;
  int threads_ = 1;
  pid_t process_ = 0;  // whose threads the crew has: after a fork the child starts its own
};

}  // namespace hybridrec
