#pragma once

#include <nanobind/nanobind.h>

namespace hybridrec {

void bind_layers(nanobind::module_& m);

}  // namespace hybridrec
