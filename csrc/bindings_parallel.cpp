// What Python sees of messages between ranks. Tensors come as addresses; Python checks sizes and keeps them alive.
#include "bindings_parallel.h"

#include <nanobind/stl/vector.h>

#include "host_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hybridrec {

void bind_parallel(nb::module_& m) {
  nb::class_<HostExchange>(m, "HostExchange")
      .def(nb::init<int, int, int, double>(), "rank"_a, "world"_a, "channels"_a, "timeout"_a)
      .def_prop_ro("process", &HostExchange::process)
      .def_prop_ro("file", &HostExchange::file)
      .def_prop_ro("token", &HostExchange::token)
      .def_prop_ro("held", &HostExchange::held)
      .def("meet", &HostExchange::meet, "processes"_a, "files"_a, "tokens"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("post", [](HostExchange& self, int channel, uintptr_t message, const std::vector<int64_t>& to) {
        nb::gil_scoped_release release;
        return self.post(channel, reinterpret_cast<const uint8_t*>(message), to);
      }, "channel"_a, "message"_a, "to"_a)
      .def("ready", &HostExchange::ready, "channel"_a, "number"_a)
      .def("take", [](HostExchange& self, int channel, uint64_t number, uintptr_t received, const std::vector<int64_t>& of) {
        nb::gil_scoped_release release;
        self.take(channel, number, reinterpret_cast<uint8_t*>(received), of);
      }, "channel"_a, "number"_a, "received"_a, "of"_a);
}

}  // namespace hybridrec
