// How much memory this process may have: that of the machine, or what its control groups leave it, as in a container.
#pragma once

#include <cstddef>

namespace hybridrec {

size_t memory_limit();  // bytes, as of the first call

}  // namespace hybridrec
