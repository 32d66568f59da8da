// What Python sees of tables: fixed and dynamic ones, captures of them, vocabularies. Tensors come as addresses; Python
// checks shapes and keeps them alive.
#include "bindings_tables.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>
#include <shared_mutex>

#include "bindings_memory.h"
#include "capture.h"
#include "hash_table.h"
#include "kernels/kernels.h"
#include "table.h"
#include "vocabulary.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hybridrec {

namespace {

using Rows2d = nb::ndarray<nb::numpy, nb::ndim<2>>;

// One slab of a fixed table as an array, which keeps its owner alive.
Rows2d view(nb::handle owner, uint8_t* data, size_t rows, int64_t width, nb::dlpack::dtype type) {
  return Rows2d(data, {rows, static_cast<size_t>(width)}, owner, {}, type);
}

void bind_fixed_tables(nb::module_& m) {
  nb::class_<RowSpec>(m, "RowSpec")
      .def("__init__", [](RowSpec* self, uint64_t key, int64_t dim, const std::string& dtype, const std::string& init, double scale,
                          int64_t first, int64_t stride, int64_t column) {
        new (self) RowSpec{key, dim, row_type(dtype), init_kind(init), scale, first, stride, column};
      }, "key"_a, "dim"_a, "dtype"_a, "init"_a, "scale"_a, "first"_a = 0, "stride"_a = 1, "column"_a = 0)
      .def("initial", [](const RowSpec& spec, Address ids, int64_t n, Address to) {
        nb::gil_scoped_release release;
        initial_rows(spec, at<const int64_t>(ids), n, at<uint8_t>(to));
      }, "ids"_a, "n"_a, "to"_a);

  nb::class_<Table>(m, "Table")
      .def("__len__", &Table::size)
      .def_prop_ro("dim", [](const Table& t) { return t.rows.spec().dim; })
      .def_prop_ro("slots_in_use", [](const Table& t) { return t.rows.size(); })
      .def("attach", [](Table& t, std::vector<int64_t> widths, std::vector<float> fills) {
        nb::gil_scoped_release release;
        std::unique_lock lock(t.lock());
        t.changing_all();
        t.rows.attach(std::move(widths), std::move(fills));
      }, "widths"_a, "fills"_a)
      .def("gather", [](const Table& t, Address slots, int64_t n, Address out) {
        nb::gil_scoped_release release;
        std::shared_lock lock(t.lock());
        kernels().gather(t.rows.spec(), t.rows.column(), at<const uint32_t>(slots), n, at<float>(out));
      }, "slots"_a, "n"_a, "out"_a)
      .def("scatter", [](Table& t, Address slots, int64_t n, Address rows) {
        nb::gil_scoped_release release;
        std::unique_lock lock(t.lock());
        Change change(t, n);
        t.changing(at<const uint32_t>(slots), n);
        kernels().scatter(t.rows.spec(), t.rows.column(), at<const uint32_t>(slots), n, at<const float>(rows));
        change.done();
      }, "slots"_a, "n"_a, "rows"_a)
      .def("gather_state", [](const Table& t, int k, Address slots, int64_t n, Address out) {
        nb::gil_scoped_release release;
        std::shared_lock lock(t.lock());
        const int64_t width = t.rows.width(k);
        for (int64_t i = 0; i < n; ++i)
          std::memcpy(at<float>(out) + i * width, t.rows.state(k).at(at<const uint32_t>(slots)[i]), 4 * width);
      }, "k"_a, "slots"_a, "n"_a, "out"_a)
      .def("scatter_state", [](Table& t, int k, Address slots, int64_t n, Address in) {
        nb::gil_scoped_release release;
        std::unique_lock lock(t.lock());
        Change change(t, n);
        t.changing(at<const uint32_t>(slots), n);
        const int64_t width = t.rows.width(k);
        for (int64_t i = 0; i < n; ++i)
          std::memcpy(t.rows.state(k).at(at<const uint32_t>(slots)[i]), at<const float>(in) + i * width, 4 * width);
        change.done();
      }, "k"_a, "slots"_a, "n"_a, "values"_a)
      .def("write", [](Table& t, uint64_t first, int64_t n, Address rows, const std::vector<Address>& states) {
        nb::gil_scoped_release release;
        std::unique_lock lock(t.lock());
        t.rows.write(first, n, at<const uint8_t>(rows), all_at<const float>(states));
      }, "first"_a, "n"_a, "rows"_a, "states"_a)
      .def("changing_all", [](Table& t) {
        nb::gil_scoped_release release;
        std::unique_lock lock(t.lock());
        t.changing_all();
      })
      .def("memory", [](const Table& t) {
        nb::dict out;
        out["rows"] = t.rows.row_bytes() * t.size();
        out["state"] = t.rows.state_bytes() * t.size();
        out["allocated"] = t.rows.allocated();
        return out;
      });

  nb::class_<DenseTable, Table>(m, "DenseTable")
      .def("__init__", [](DenseTable* self, const RowSpec& spec, int64_t rows, const std::string& policy) {
        nb::gil_scoped_release release;
        new (self) DenseTable(spec, rows, out_of_range(policy.c_str()));
      }, "spec"_a, "rows"_a, "out_of_range"_a)
      .def("weight", [](nb::handle_t<DenseTable> self) {
        const auto& rows = nb::cast<DenseTable&>(self).rows;
        const auto type = rows.spec().type == RowType::F32 ? nb::dtype<float>() : nb::dtype<uint16_t>();
        return view(self, rows.column().slabs[0], rows.size(), rows.spec().dim, type);
      })
      .def("state", [](nb::handle_t<DenseTable> self, int k) {
        const auto& rows = nb::cast<DenseTable&>(self).rows;
        if (k < 0 || k >= rows.states()) throw nb::index_error("no such state");
        if (rows.size() == 0) return view(self, nullptr, 0, rows.width(k), nb::dtype<float>());
        auto* kept = new std::shared_ptr<Pages>(rows.state_pages(k));
        nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<Pages>*>(p); });
        return view(owner, rows.state(k).slabs[0], rows.size(), rows.width(k), nb::dtype<float>());
      }, "k"_a)
      .def("resolve", [](const DenseTable& self, Address ids, int64_t n, Address slots) {
        return self.resolve({at<const int64_t>(ids), at<uint32_t>(slots), n});
      }, "ids"_a, "n"_a, "slots"_a);

  nb::class_<ViewTable, DenseTable>(m, "ViewTable")
      .def(nb::init<int64_t>(), "dim"_a)
      .def("show", [](ViewTable& self, Address data, uint64_t rows) { self.show(at<float>(data), rows); }, "data"_a, "rows"_a);
}

using Slots = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

nb::dict counters(const HashTable& table) {
  const Counters c = table.counters();
  nb::dict out;
  out["hits"] = c.hits;
  out["misses"] = c.misses;
  out["inserted"] = c.inserted;
  out["refused"] = c.refused;
  out["evicted"] = c.evicted;
  out["expired"] = c.expired;
  out["dropped_gradients"] = c.dropped;
  return out;
}

nb::dict overhead(const HashTable& table) {
  std::shared_lock lock(table.lock());
  const Memory memory = table.memory();
  nb::dict out;
  out["keys"] = memory.keys;
  out["scores"] = memory.scores;
  out["index"] = memory.index;
  out["sketch"] = memory.sketch;
  out["slack"] = memory.slack;
  out["overhead_per_row"] = memory.per_row(table.size());
  return out;
}

void bind_hash_table(nb::module_& m) {
  nb::class_<HashTable, Table>(m, "HashTable")
      .def("__init__", [](HashTable* self, const RowSpec& spec, uint64_t capacity, const std::string& eviction,
                          uint32_t ttl_steps, double probability, uint32_t min_count) {
        new (self) HashTable(spec, {capacity, eviction_kind(eviction), ttl_steps, probability, min_count});
      }, "spec"_a, "capacity"_a, "eviction"_a, "ttl_steps"_a, "probability"_a, "min_count"_a)
      .def_prop_rw("clock", &HashTable::clock, [](HashTable& self, uint32_t clock) {
        nb::gil_scoped_release release;
        std::unique_lock lock(self.lock());
        self.set_clock(clock);
      })
      .def("advance", [](HashTable& self) {
        nb::gil_scoped_release release;
        std::unique_lock lock(self.lock());
        self.advance();
      })
      .def("find", [](HashTable& self, Address ids, int64_t n, Address slots) {
        nb::gil_scoped_release release;
        std::shared_lock lock(self.lock());
        return self.find({at<const int64_t>(ids), at<uint32_t>(slots), n}, false);
      }, "ids"_a, "n"_a, "slots"_a)
      .def("admit", [](HashTable& self, Address ids, int64_t n, Address slots) {
        nb::gil_scoped_release release;
        std::unique_lock lock(self.lock());
        const IdSpan span{at<const int64_t>(ids), at<uint32_t>(slots), n};
        if (self.find(span, true) == 0) return;
        Change change(self);
        self.fill(self.admit({span}));
        change.done();
      }, "ids"_a, "n"_a, "slots"_a)
      .def("put", [](HashTable& self, Address ids, int64_t n, Address slots) {
        nb::gil_scoped_release release;
        std::unique_lock lock(self.lock());
        Change change(self);
        self.fill(self.put(at<const int64_t>(ids), n, at<uint32_t>(slots)));
        change.done();
      }, "ids"_a, "n"_a, "slots"_a)
      .def("live", [](const HashTable& self) {
        std::shared_lock lock(self.lock());
        return owned<Slots>(self.live());
      })
      .def("ids", [](const HashTable& self, Address slots, int64_t n, Address out) {
        for (int64_t i = 0; i < n; ++i) at<int64_t>(out)[i] = self.id_of(at<const uint32_t>(slots)[i]);
      }, "slots"_a, "n"_a, "out"_a)
      .def("scores", [](const HashTable& self, Address slots, int64_t n, Address touched, Address counts) {
        for (int64_t i = 0; i < n; ++i) {
          at<int64_t>(touched)[i] = self.touched(at<const uint32_t>(slots)[i]);
          at<int64_t>(counts)[i] = self.count(at<const uint32_t>(slots)[i]);
        }
      }, "slots"_a, "n"_a, "touched"_a, "counts"_a)
      .def("set_scores", [](HashTable& self, Address slots, int64_t n, Address touched, Address counts) {
        std::unique_lock lock(self.lock());
        Change change(self, n);
        self.changing(at<const uint32_t>(slots), n);
        for (int64_t i = 0; i < n; ++i)
          self.set_score(at<const uint32_t>(slots)[i], static_cast<uint32_t>(at<const int64_t>(touched)[i]),
                         static_cast<uint32_t>(at<const int64_t>(counts)[i]));
        change.done();
      }, "slots"_a, "n"_a, "touched"_a, "counts"_a)
      .def("erase", [](HashTable& self, Address ids, int64_t n) {
        std::unique_lock lock(self.lock());
        Change change(self, n);
        self.erase(at<const int64_t>(ids), n);
        change.done();
      }, "ids"_a, "n"_a)
      .def("make_room", [](HashTable& self, uint64_t rows) {
        nb::gil_scoped_release release;
        std::unique_lock lock(self.lock());
        self.make_room(rows);
      }, "rows"_a)
      .def("reserve_empty", [](HashTable& self, uint64_t rows) {
        nb::gil_scoped_release release;
        std::unique_lock lock(self.lock());
        self.changing_all();
        self.reserve_empty(rows);
      }, "rows"_a)
      .def("append", [](HashTable& self, Address ids, Address touched, Address counts, int64_t n) {
        nb::gil_scoped_release release;
        std::unique_lock lock(self.lock());
        return self.append(at<const int64_t>(ids), at<const int64_t>(touched), at<const int64_t>(counts), n);
      }, "ids"_a, "touched"_a, "counts"_a, "n"_a)
      .def("clear", [](HashTable& self) {
        std::unique_lock lock(self.lock());
        self.clear();
      })
      .def("whole", [](HashTable& self) {
        std::unique_lock lock(self.lock());
        self.whole();
      })
      .def("sketch", [](const HashTable& self) -> std::optional<Bytes> {
        std::shared_lock lock(self.lock());
        const Sketch* sketch = self.sketch();
        if (sketch == nullptr) return std::nullopt;
        return owned<Bytes>(std::vector<uint8_t>(sketch->data(), sketch->data() + sketch->bytes()));
      })
      .def("set_sketch", [](HashTable& self, nb::bytes data) {
        std::unique_lock lock(self.lock());
        if (self.sketch() == nullptr) throw nb::value_error("this table has no minimum count, so it has no sketch");
        Change change(self);
        if (self.home) self.home->keep(self.sketch()->data(), self.sketch()->bytes());
        self.sketch()->load(reinterpret_cast<const uint8_t*>(data.c_str()), data.size());
        change.done();
      }, "data"_a)
      .def("counters", &counters)
      .def("overhead", &overhead);
}

void bind_capture(nb::module_& m) {
  nb::class_<Capture>(m, "Capture")
      .def("__init__", [](Capture* self, std::shared_ptr<Table> table) {
        nb::gil_scoped_release release;
        new (self) Capture(std::move(table));
      }, "table"_a)
      .def_prop_ro("slots", &Capture::slots)
      .def("used", [](const Capture& self, uint64_t first, uint64_t last) {
        std::vector<uint32_t> slots;
        {
          nb::gil_scoped_release release;
          slots = self.used(first, last);
        }
        return owned<Slots>(std::move(slots));
      }, "first"_a, "last"_a)
      .def("read", [](Capture& self, Address slots, int64_t n, Address ids, Address touched, Address counts, Address rows,
                      const std::vector<Address>& states) {
        nb::gil_scoped_release release;
        self.read(at<const uint32_t>(slots), n,
                  {at<int64_t>(ids), at<int64_t>(touched), at<int64_t>(counts), at<uint8_t>(rows), all_at<float>(states)});
      }, "slots"_a, "n"_a, "ids"_a, "touched"_a, "counts"_a, "rows"_a, "states"_a);
}

void bind_vocabulary(nb::module_& m) {
  nb::class_<Vocabulary>(m, "Vocabulary")
      .def(nb::init<int64_t>(), "max_tokens"_a)
      .def_prop_ro("max_tokens", &Vocabulary::max_tokens)
      .def("__len__", &Vocabulary::size)
      .def("lookup", [](Vocabulary& self, Address ids, int64_t n, Address out, bool learn) {
        nb::gil_scoped_release release;
        self.lookup(at<const int64_t>(ids), n, at<int64_t>(out), learn);
      }, "ids"_a, "n"_a, "out"_a, "learn"_a)
      .def("keys", [](const Vocabulary& self) { return owned<Numbers>(self.keys()); })
      .def("counts", [](const Vocabulary& self) { return owned<Numbers>(self.counts()); })
      .def("load", [](Vocabulary& self, Address keys, int64_t size, Address counts) {
        self.load(at<const int64_t>(keys), size, at<const int64_t>(counts));
      }, "keys"_a, "size"_a, "counts"_a);
}

}  // namespace

void bind_tables(nb::module_& m) {
  bind_fixed_tables(m);
  bind_hash_table(m);
  bind_capture(m);
  bind_vocabulary(m);
}

}  // namespace hybridrec
