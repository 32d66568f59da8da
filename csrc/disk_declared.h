// What a table on disk was declared as, which must be the same whenever it is opened again.
#pragma once

#include <cstdint>
#include <string>

#include "hash_table.h"

namespace hybridrec {

// Where a table is, and what it is called there.
struct Place {
  std::string directory, name;
  uint64_t seed;
  bool read_only;
};

// A line "name value" for all that must not differ, in the order in which a difference is told.
std::string describe(const RowSpec& spec, const Policy& policy, const Place& place);
// std::invalid_argument for the first line that is another, with both values.
void refuse_difference(const std::string& directory, const std::string& found, const std::string& wanted);

}  // namespace hybridrec
