// What the tests of the C++ core are made of: tests that enlist themselves, and checks that say where they failed.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace hybridrec {

struct Test {
  const char* sentence;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Enlist {
  Enlist(const char* sentence, void (*run)()) { tests().push_back({sentence, run}); }
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

}  // namespace hybridrec

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEST(sentence)                                                          \
  static void JOIN(test_, __LINE__)();                                          \
  static const Enlist JOIN(enlist_, __LINE__)(sentence, &JOIN(test_, __LINE__)); \
  static void JOIN(test_, __LINE__)()

#define CHECK(condition)                                  \
  do {                                                    \
    if (!(condition)) fail(__FILE__, __LINE__, #condition); \
  } while (0)

// The expression throws Error, and its message has `part` in it.
#define CHECK_THROWS(Error, expression, part)                                                           \
  do {                                                                                                  \
    std::string said;                                                                                   \
    try {                                                                                               \
      (void)(expression);                                                                               \
      fail(__FILE__, __LINE__, #expression " throws nothing");                                          \
    } catch (const Error& error) {                                                                      \
      said = error.what();                                                                              \
    }                                                                                                   \
    if (said.find(part) == std::string::npos) fail(__FILE__, __LINE__, #expression " says '" + said + "'"); \
  } while (0)
