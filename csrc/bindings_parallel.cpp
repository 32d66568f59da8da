// What Python sees of the way from ids to ranks, and of messages between them. Tensors come as addresses; Python checks sizes and keeps them alive.
#include "bindings_parallel.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings_memory.h"
#include "host_memory.h"
#include "router.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hybridrec {

namespace {

struct Router {
  std::vector<Target> targets;
  int world;
};

void bind_router(nb::module_& m) {
  nb::class_<Router>(m, "Router")
      .def("__init__", [](Router* self, const std::vector<std::tuple<int64_t, std::string, std::vector<int>, bool, bool>>& targets,
                          int world) {
        std::vector<Target> made;
        for (const auto& [rows, policy, holders, every, served] : targets)
          made.push_back({rows, out_of_range(policy.c_str()), holders, every, served});
        new (self) Router{std::move(made), world};
      }, "targets"_a, "world"_a)
      .def("route", [](const Router& self, Address values, const std::vector<std::tuple<int, int64_t, int64_t>>& asked) {
        nb::gil_scoped_release release;
        std::vector<Asked> made;
        for (const auto& [target, start, count] : asked) made.push_back({target, start, count});
        return std::make_unique<Routed>(self.targets, made, at<const int64_t>(values), self.world);
      }, "values"_a, "asked"_a);

  nb::class_<Routed>(m, "Routed")
      .def("counts", [](const Routed& self) { return owned<Numbers>(self.counts()); })
      .def_prop_ro("fault", [](const Routed& self) -> std::optional<std::tuple<int, int64_t, int64_t>> {
        if (!self.failed()) return std::nullopt;
        return std::make_tuple(self.fault().feature, self.fault().position, self.fault().value);
      })
      .def("fill", [](const Routed& self, const std::vector<Address>& messages, const std::vector<int64_t>& bases,
                      const std::vector<Address>& positions) {
        nb::gil_scoped_release release;
        self.fill(all_at<int64_t>(messages), bases, all_at<int64_t>(positions));
      }, "messages"_a, "bases"_a, "positions"_a);

  m.def("servers_of", [](Address ids, int64_t n, int64_t count, Address out) {
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < n; ++i) at<int32_t>(out)[i] = static_cast<int32_t>(server_of(at<const int64_t>(ids)[i], count));
  }, "ids"_a, "n"_a, "count"_a, "out"_a);
}

void bind_exchange(nb::module_& m) {
  nb::class_<HostExchange>(m, "HostExchange")
      .def(nb::init<int, int, int, double>(), "rank"_a, "world"_a, "channels"_a, "timeout"_a)
      .def_prop_ro("process", &HostExchange::process)
      .def_prop_ro("file", &HostExchange::file)
      .def_prop_ro("token", &HostExchange::token)
      .def_prop_ro("held", &HostExchange::held)
      .def("meet", &HostExchange::meet, "processes"_a, "files"_a, "tokens"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("post", [](HostExchange& self, int channel, Address message, const std::vector<int64_t>& to) {
        nb::gil_scoped_release release;
        return self.post(channel, at<const uint8_t>(message), to);
      }, "channel"_a, "message"_a, "to"_a)
      .def("ready", &HostExchange::ready, "channel"_a, "number"_a)
      .def("take", [](HostExchange& self, int channel, uint64_t number, Address received, const std::vector<int64_t>& of) {
        nb::gil_scoped_release release;
        self.take(channel, number, at<uint8_t>(received), of);
      }, "channel"_a, "number"_a, "received"_a, "of"_a);
}

}  // namespace

void bind_parallel(nb::module_& m) {
  bind_router(m);
  bind_exchange(m);
}

}  // namespace hybridrec
