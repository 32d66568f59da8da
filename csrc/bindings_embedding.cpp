// What Python sees of the embedding core. Tensors come as addresses: a DLPack exchange per call would cost more than
// a small lookup, and refuses tensors that require a gradient. Python checks shapes and keeps the tensors alive.
#include "bindings_embedding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <mutex>
#include <optional>
#include <shared_mutex>

#include "bindings_memory.h"
#include "hash_table.h"
#include "lookup.h"
#include "row_update.h"
#include "thread_pool.h"
#include "vocabulary.h"
#include "xxhash64.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hybridrec {

namespace {

// Which features of a block a set of tables takes, and how they are laid out; made once per kind of block.
struct BlockLayout {
  std::vector<int> pick;
  std::vector<int64_t> hotness, line;  // hotness -1 and a line of offsets, or a hotness and line -1

  Block block(Address values, const std::vector<int64_t>& starts, Address offsets, Address weights, int64_t batch) const {
    Block out{at<const int64_t>(values), at<const int64_t>(offsets), at<const float>(weights), batch, {}};
    for (size_t f = 0; f < pick.size(); ++f)
      out.picks.push_back({starts[pick[f]], starts[pick[f] + 1] - starts[pick[f]], hotness[f], line[f]});
    return out;
  }
};

using Rows2d = nb::ndarray<nb::numpy, nb::ndim<2>>;

// One slab of a fixed table as an array, which keeps its owner alive.
Rows2d view(nb::handle owner, uint8_t* data, size_t rows, int64_t width, nb::dlpack::dtype type) {
  return Rows2d(data, {rows, static_cast<size_t>(width)}, owner, {}, type);
}

nb::object lookup(const TableSet& set, const BlockLayout& layout, Address values, const std::vector<int64_t>& starts,
                  Address offsets, Address weights, int64_t batch, bool train, Address slots, Address flat, int64_t stride,
                  const std::vector<Address>& sequences, const std::vector<Address>& winners, Address removals) {
  std::optional<LookupFault> fault;
  {
    nb::gil_scoped_release release;
    const Outputs out{at<float>(flat), stride, all_at<float>(sequences), all_at<int32_t>(winners)};
    fault = set.lookup(layout.block(values, starts, offsets, weights, batch), train, at<uint32_t>(slots), out, at<uint64_t>(removals));
  }
  if (!fault) return nb::none();
  constexpr const char* kKinds[] = {"range", "offsets", "capacity"};
  return nb::make_tuple(kKinds[static_cast<int>(fault->what)], fault->feature, fault->position, fault->value, fault->message);
}

void weight_gradient(const TableSet& set, const BlockLayout& layout, Address values, const std::vector<int64_t>& starts,
                     Address offsets, Address weights, int64_t batch, Address slots, Address flat, int64_t stride,
                     const std::vector<Address>& winners, Address flat_grad, int64_t grad_stride,
                     const std::vector<Address>& sequence_grads, Address result) {
  nb::gil_scoped_release release;
  const Outputs out{at<float>(flat), stride, std::vector<float*>(sequence_grads.size()), all_at<int32_t>(winners)};
  const Outputs grad{at<float>(flat_grad), grad_stride, all_at<float>(sequence_grads), {}};
  set.weight_gradient(layout.block(values, starts, offsets, weights, batch), at<const uint32_t>(slots), out, grad, at<float>(result));
}

void sum_gradients(const TableSet& set, const BlockLayout& layout, Address values, const std::vector<int64_t>& starts,
                   Address offsets, Address weights, int64_t batch, Address slots, const std::vector<Address>& winners,
                   Address flat_grad, int64_t grad_stride, const std::vector<Address>& sequence_grads, float factor,
                   const std::vector<std::vector<int>>& groups) {
  nb::gil_scoped_release release;
  const Outputs grad{at<float>(flat_grad), grad_stride, all_at<float>(sequence_grads), all_at<int32_t>(winners)};
  set.sum_gradients(layout.block(values, starts, offsets, weights, batch), at<const uint32_t>(slots), grad, factor, groups);
}

// numbers: lr, momentum, weight_decay, eps, beta1, beta2, l1, l2, beta, bound, clip, grad_scale
RowStep make_step(const std::string& rule, const std::vector<double>& x, uint64_t step) {
  if (x.size() != 12) throw nb::value_error("a row step has twelve numbers");
  return {rule_of(rule), x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10], x[11], static_cast<uint32_t>(step % 0xFFFFFFFEull)};
}

std::vector<Pending> copied(const std::vector<Pending*>& pending) {
  std::vector<Pending> calls;
  for (const Pending* call : pending) calls.push_back(*call);
  return calls;
}

nb::object apply(RowUpdate& self, const std::vector<Pending*>& pending, const RowUpdate::Steps& steps, bool norm_only,
                 const std::vector<std::optional<std::shared_ptr<WholeRows>>>& wholes,
                 const std::vector<std::optional<std::tuple<uint64_t, uint64_t, uint64_t>>>& tags) {
  std::vector<StepResult> results;
  {
    nb::gil_scoped_release release;
    std::vector<Pending> calls = copied(pending);
    RowUpdate::Wholes given;
    for (const auto& whole : wholes) given.push_back(whole.value_or(nullptr));
    RowUpdate::Tags kept;
    for (const auto& tag : tags)
      kept.push_back(tag ? std::optional<Tag>({std::get<0>(*tag), std::get<1>(*tag), std::get<2>(*tag)}) : std::nullopt);
    results = self.apply(calls, steps, norm_only, given, kept);
  }
  nb::list out;
  for (const StepResult& r : results) out.append(nb::make_tuple(r.updated, r.not_finite, r.squares));
  return out;
}

bool finite(const RowUpdate& self, const std::vector<Pending*>& pending, const std::vector<bool>& tables) {
  nb::gil_scoped_release release;
  return self.finite(copied(pending), tables);
}

void bind_tables(nb::module_& m) {
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

void bind_embedding(nb::module_& m) {
  m.def("table_key", [](const std::string& name, uint64_t seed) {
    return xxh64(reinterpret_cast<const uint8_t*>(name.data()), name.size(), seed);
  }, "name"_a, "seed"_a);
  m.def("instruction_set", [] { return kernels().name; });  // of the loops over rows
  m.def("set_threads", [](int n) { ThreadPool::instance().resize(n); }, "n"_a);
  m.def("threads", [] { return ThreadPool::instance().threads(); });
  bind_tables(m);
  bind_hash_table(m);
  bind_capture(m);
  bind_vocabulary(m);

  nb::class_<BlockLayout>(m, "BlockLayout")
      .def("__init__", [](BlockLayout* self, std::vector<int> pick, std::vector<int64_t> hotness, std::vector<int64_t> line) {
        new (self) BlockLayout{std::move(pick), std::move(hotness), std::move(line)};
      }, "pick"_a, "hotness"_a, "line"_a);

  nb::class_<TableSet>(m, "TableSet")
      .def("__init__", [](TableSet* self, std::vector<std::shared_ptr<Table>> tables,
                          const std::vector<std::tuple<int, std::string, int>>& features) {
        std::vector<Feature> made;
        for (const auto& [table, combiner, group] : features) made.push_back({table, combiner_of(combiner), group});
        new (self) TableSet(std::move(tables), std::move(made));
      }, "tables"_a, "features"_a)
      .def_prop_ro("width", &TableSet::width)
      .def("removals", &TableSet::removals)
      .def("lookup", &lookup, "layout"_a, "values"_a, "starts"_a, "offsets"_a, "weights"_a, "batch"_a, "train"_a, "slots"_a,
           "flat"_a, "stride"_a, "sequences"_a, "winners"_a, "removals"_a = 0)
      .def("weight_gradient", &weight_gradient, "layout"_a, "values"_a, "starts"_a, "offsets"_a, "weights"_a, "batch"_a,
           "slots"_a, "flat"_a, "stride"_a, "winners"_a, "flat_grad"_a, "grad_stride"_a, "sequence_grads"_a, "result"_a)
      .def("sum_gradients", &sum_gradients, "layout"_a, "values"_a, "starts"_a, "offsets"_a, "weights"_a, "batch"_a, "slots"_a,
           "winners"_a, "flat_grad"_a, "grad_stride"_a, "sequence_grads"_a, "factor"_a, "groups"_a);

  nb::class_<Pending>(m, "Pending")
      .def("__init__", [](Pending* self, std::shared_ptr<TableSet> set, const BlockLayout& layout, Address values,
                          const std::vector<int64_t>& starts, Address offsets, Address weights, int64_t batch, Address slots,
                          Address flat_grad, int64_t stride, const std::vector<Address>& sequence_grads,
                          const std::vector<Address>& winners, std::vector<uint64_t> removals) {
        std::vector<bool> wanted(set->tables().size(), true);
        new (self) Pending{std::move(set), layout.block(values, starts, offsets, weights, batch), at<uint32_t>(slots),
                           {at<float>(flat_grad), stride, all_at<float>(sequence_grads), all_at<int32_t>(winners)},
                           std::move(removals), std::move(wanted)};
      }, "tables"_a, "layout"_a, "values"_a, "starts"_a, "offsets"_a, "weights"_a, "batch"_a, "slots"_a, "flat_grad"_a,
         "stride"_a, "sequence_grads"_a, "winners"_a, "removals"_a)
      .def_rw("wanted", &Pending::wanted);

  nb::class_<RowStep>(m, "RowStep")
      .def("__init__", [](RowStep* self, const std::string& rule, const std::vector<double>& numbers, uint64_t step) {
        new (self) RowStep(make_step(rule, numbers, step));
      }, "rule"_a, "numbers"_a, "step"_a);

  nb::class_<WholeRows>(m, "WholeRows")
      .def("__len__", [](const WholeRows& self) { return self.slots.size(); })
      .def("sums", [](nb::handle_t<WholeRows> self) {  // [rows, 3], to be written to
        auto& sums = nb::cast<WholeRows&>(self).sums;
        return nb::ndarray<nb::numpy, double, nb::ndim<2>>(sums.data(), {sums.size(), 3}, self);
      });

  nb::class_<RowUpdate>(m, "RowUpdate")
      .def(nb::init<std::vector<std::shared_ptr<Table>>>(), "tables"_a)
      .def("apply", &apply, "pending"_a, "steps"_a, "norm_only"_a = false,
           "wholes"_a = std::vector<std::optional<std::shared_ptr<WholeRows>>>(),
           "tags"_a = std::vector<std::optional<std::tuple<uint64_t, uint64_t, uint64_t>>>())
      .def("measure", [](RowUpdate& self, const std::vector<Pending*>& pending, const RowUpdate::Steps& steps,
                         const std::vector<int64_t>& dims) {
        nb::gil_scoped_release release;
        std::vector<Pending> calls = copied(pending);
        return self.measure(calls, steps, dims);
      }, "pending"_a, "steps"_a, "dims"_a)
      .def("finite", &finite, "pending"_a, "tables"_a);
}

}  // namespace hybridrec
