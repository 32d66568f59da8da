#pragma once

#include <nanobind/nanobind.h>

namespace hybridrec {

void bind_parallel(nanobind::module_& m);

}  // namespace hybridrec
