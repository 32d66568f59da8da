// Runs all tests, or those whose sentence contains the first argument.
#include <sys/resource.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "check.h"

// What goes wrong here harms nobody else: no file grows beyond what the largest test needs by far, which is an error
// like that of a full disk, and nothing runs on when whoever started it is gone.
void keep_to_itself() {
  const rlimit most{rlim_t{1} << 30, rlim_t{1} << 30};
  setrlimit(RLIMIT_FSIZE, &most);
  std::signal(SIGXFSZ, SIG_IGN);
#if defined(__linux__)
  prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
}

int main(int count, char** arguments) {
  using Clock = std::chrono::steady_clock;
  keep_to_itself();
  int failed = 0, run = 0;
  for (const hybridrec::Test& test : hybridrec::tests()) {
    if (count > 1 && std::strstr(test.sentence, arguments[1]) == nullptr) continue;
    const auto start = Clock::now();
    std::string fault;
    try {
      test.run();
    } catch (const std::exception& error) {
      fault = error.what();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::printf("%-6s %6.2f s  %s\n", fault.empty() ? "ok" : "FAILED", seconds, test.sentence);
    if (!fault.empty()) std::printf("       %s\n", fault.c_str());
    std::fflush(stdout);
    failed += !fault.empty();
    ++run;
  }
  std::printf("%d tests, %d failed\n", run, failed);
  return failed != 0 || run == 0;
}
