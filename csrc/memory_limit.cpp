#include "memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace hybridrec {

namespace {

size_t machine_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The lowest limit of a group and of those it is in. A container may see its own group as the root, and not by its path.
size_t lowest(const std::string& root, std::string group, const char* file, size_t limit) {
  while (true) {
    size_t found = 0;
    if (std::ifstream(root + group + "/" + file) >> found) limit = std::min(limit, found);  // "max" is no number
    if (group.empty()) return limit;
    group.resize(std::min(group.rfind('/'), group.size() - 1));
  }
}

// Lines of /proc/self/cgroup are "number:controllers:group"; the second version has no controllers there.
size_t group_memory(size_t limit) {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", group = line.substr(second + 1);
    if (controllers == ",,") limit = lowest("/sys/fs/cgroup", group, "memory.max", limit);
    if (controllers.find(",memory,") != std::string::npos)
      limit = lowest("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", limit);
  }
  return limit;
}

}  // namespace

size_t memory_limit() {
  static const size_t bytes = group_memory(machine_memory());
  return bytes;
}

}  // namespace hybridrec
