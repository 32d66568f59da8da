#pragma once

#include <nanobind/nanobind.h>

namespace hybridrec {

void bind_embedding(nanobind::module_& m);

}  // namespace hybridrec
