// What Python sees of tables on disk, beyond what it sees of dynamic tables.
#include "bindings_disk.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <shared_mutex>

#include "bindings_memory.h"
#include "disk_home.h"
#include "lookup.h"
#include "row_update.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hybridrec {

namespace {

using TagTuple = std::tuple<uint64_t, uint64_t, uint64_t>;

template <typename F>
auto alone(DiskTable& table, const F& f) {
  nb::gil_scoped_release release;
  std::unique_lock lock(table.lock());
  return f(table.disk());
}

}  // namespace

void bind_disk(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& raised, void*) {
    try {
      std::rethrow_exception(raised);
    } catch (const DiskError& error) {
      PyErr_SetObject(PyExc_OSError, nb::make_tuple(error.code, error.what()).ptr());
    }
  });

  nb::class_<DiskTable, HashTable>(m, "DiskTable")
      .def("__init__", [](DiskTable* self, const RowSpec& spec, uint64_t capacity, const std::string& eviction, uint32_t ttl_steps,
                          double probability, uint32_t min_count, const std::string& path, const std::string& name, uint64_t seed,
                          bool read_only) {
        nb::gil_scoped_release release;
        new (self) DiskTable(spec, {capacity, eviction_kind(eviction), ttl_steps, probability, min_count},
                             {path, name, seed, read_only});
      }, "spec"_a, "capacity"_a, "eviction"_a, "ttl_steps"_a, "probability"_a, "min_count"_a, "path"_a, "name"_a, "seed"_a,
         "read_only"_a = false)
      .def_prop_ro("read_only", [](const DiskTable& t) { return t.disk().read_only(); })
      .def_prop_ro("rule", [](const DiskTable& t) { return t.disk().rule(); })
      .def("set_rule", [](DiskTable& t, const std::string& rule) { t.disk().set_rule(rule); }, "rule"_a)
      .def_prop_ro("changes", [](const DiskTable& t) { return t.disk().changes(); })
      .def("begin", [](DiskTable& t) { alone(t, [](DiskHome& disk) { disk.begin(0); }); })
      .def("done", [](DiskTable& t, const std::optional<TagTuple>& tag) {
        const auto of = [](const TagTuple& numbers) { return Tag{std::get<0>(numbers), std::get<1>(numbers), std::get<2>(numbers)}; };
        alone(t, [&](DiskHome& disk) { disk.commit(tag ? std::optional<Tag>(of(*tag)) : std::nullopt); });
      }, "tag"_a = nb::none())
      .def("abort", [](DiskTable& t) { alone(t, [](DiskHome& disk) { disk.abort(); }); })
      .def("tags", [](DiskTable& t) {
        std::vector<TagTuple> found;
        for (const Tag& tag : alone(t, [](DiskHome& disk) { return disk.tags(); })) found.emplace_back(tag.source, tag.first, tag.second);
        return found;
      })
      .def("forget_tag", [](DiskTable& t, uint64_t source) { alone(t, [&](DiskHome& disk) { disk.forget_tag(source); }); }, "source"_a)
      .def("cut", [](DiskTable& t, const std::string& name) { alone(t, [&](DiskHome& disk) { disk.cut(name); }); }, "name"_a)
      .def("roll_back", [](DiskTable& t, const std::string& name) { alone(t, [&](DiskHome& disk) { disk.roll_back(name); }); }, "name"_a)
      .def("forget_cut", [](DiskTable& t, const std::string& name) { alone(t, [&](DiskHome& disk) { disk.forget_cut(name); }); }, "name"_a)
      .def("cuts", [](DiskTable& t) { return alone(t, [](DiskHome& disk) { return disk.cuts(); }); });
}

}  // namespace hybridrec
