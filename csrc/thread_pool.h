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

  static ThreadPool& instance();

  void resize(int threads);
  int threads();

  // Runs work(task, worker) for every task in [0, tasks), in any order, and returns when all are done.
  // 0 <= worker < threads(), and no two tasks of a call run at once with the same worker. The first exception is
  // thrown again, after which the rest of the tasks may not have run.
  void run(int64_t tasks, const Work& work);

 private:
  class Crew;
  std::shared_ptr<Crew> crew();

  std::mutex mutex_;
  std::shared_ptr<Crew> crew_;
  int threads_ = 1;
  pid_t process_ = 0;  // whose threads the crew has: after a fork the child starts its own
};

}  // namespace hybridrec
