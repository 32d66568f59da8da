#pragma once

#include <nanobind/nanobind.h>

namespace hybridrec {

void bind_tables(nanobind::module_& m);

}  // namespace hybridrec
