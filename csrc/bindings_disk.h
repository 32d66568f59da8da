#pragma once

#include <nanobind/nanobind.h>

namespace hybridrec {

void bind_disk(nanobind::module_& m);

}  // namespace hybridrec
