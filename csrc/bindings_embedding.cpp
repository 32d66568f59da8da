// What Python sees of lookups and updates over a set of tables. Tensors come as addresses: a DLPack exchange per call
// would cost more than a small lookup, and refuses tensors that require a gradient. Python checks shapes and keeps the
// tensors alive.
#include "bindings_embedding.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings_memory.h"
#include "lookup.h"
#include "row_update.h"
#include "thread_pool.h"
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

}  // namespace

void bind_embedding(nb::module_& m) {
  m.def("table_key", [](const std::string& name, uint64_t seed) {
    return xxh64(reinterpret_cast<const uint8_t*>(name.data()), name.size(), seed);
  }, "name"_a, "seed"_a);
  m.def("instruction_set", [] { return kernels().name; });  // of the loops over rows
  m.def("set_threads", [](int n) { ThreadPool::instance().resize(n); }, "n"_a);
  m.def("threads", [] { return ThreadPool::instance().threads(); });

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
