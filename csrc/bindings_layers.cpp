// What Python sees of the layers between embeddings and the network above. Tensors come as addresses; Python checks sizes
// and keeps them alive.
#include "bindings_layers.h"

#include "bindings_memory.h"
#include "pair_dots.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hybridrec {

void bind_layers(nb::module_& m) {
  nb::class_<PairDots>(m, "PairDots")
      .def("__init__", [](PairDots* self, Address below, int64_t below_stride, Address fields, int64_t fields_stride,
                          int64_t fields_count, int64_t dim) {
        new (self) PairDots{at<const float>(below), below_stride, at<const float>(fields), fields_stride, fields_count, dim};
      }, "below"_a, "below_stride"_a, "fields"_a, "fields_stride"_a, "fields_count"_a, "dim"_a)
      .def("forward", [](const PairDots& self, int64_t rows, Address out, int64_t width) {
        nb::gil_scoped_release release;
        pair_dots(self, rows, at<float>(out), width);
      }, "rows"_a, "out"_a, "width"_a)
      .def("backward", [](const PairDots& self, int64_t rows, Address grad, int64_t grad_stride, Address of_below,
                          Address of_fields) {
        nb::gil_scoped_release release;
        pair_dots_gradient(self, rows, at<const float>(grad), grad_stride, at<float>(of_below), at<float>(of_fields));
      }, "rows"_a, "grad"_a, "grad_stride"_a, "of_below"_a, "of_fields"_a);
}

}  // namespace hybridrec
