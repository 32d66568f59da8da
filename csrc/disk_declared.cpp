#include "disk_declared.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "disk_layout.h"

namespace hybridrec {

namespace {

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    found.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

}  // namespace

std::string describe(const RowSpec& spec, const Policy& policy, const Place& place) {
  constexpr const char *kTypes[] = {"float32", "float16", "bfloat16"}, *kInits[] = {"uniform", "normal", "constant"},
                       *kEvictions[] = {"none", "lru", "lfu", "ttl"};
  std::string text;
  const auto line = [&](const char* name, const std::string& value) { text += std::string(name) + "\t" + value + "\n"; };
  line("name", place.name);
  line("seed", std::to_string(place.seed));
  line("dim", std::to_string(spec.dim));
  line("dtype", kTypes[static_cast<int>(spec.type)]);
  line("init", kInits[static_cast<int>(spec.init)]);
  line("init scale", number_text(spec.scale));
  line("capacity", std::to_string(policy.capacity));
  line("eviction", kEvictions[static_cast<int>(policy.eviction)]);
  line("ttl steps", std::to_string(policy.ttl_steps));
  line("admission probability", number_text(policy.probability));
  line("admission count", std::to_string(policy.min_count));
  line("share index", std::to_string(spec.first));
  line("share count", std::to_string(spec.stride));
  line("first column", std::to_string(spec.column));
  if (text.size() > sizeof(Head::text)) throw std::invalid_argument("a table's name on disk has at most 3000 bytes");
  return text;
}

void refuse_difference(const std::string& directory, const std::string& found, const std::string& wanted) {
  const auto a = lines(found), b = lines(wanted);
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "", right = i < b.size() ? b[i] : "";
    if (left == right) continue;
    const std::string name = right.substr(0, right.find('\t'));
    const auto value = [](const std::string& line) { return line.substr(std::min(line.find('\t'), line.size() - 1) + 1); };
    throw std::invalid_argument("the table in " + directory + " has " + name + " " + value(left) + ", not " + value(right) +
                                "; give it another directory, or declare it as it was");
  }
}

}  // namespace hybridrec
