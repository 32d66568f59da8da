// The one binding file: Python sees Arena, HashCache, Chunk, Packer and four functions. Work that takes long runs
// without the GIL. Arrow data comes in as PyCapsules (the Arrow PyCapsule interface), batches go out as one block.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arena.h"
#include "bindings_disk.h"
#include "bindings_embedding.h"
#include "bindings_layers.h"
#include "bindings_parallel.h"
#include "bindings_tables.h"
#include "chunk.h"
#include "pack.h"
#include "permutation.h"
#include "xxhash64.h"

namespace nb = nanobind;
using namespace hybridrec;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ids and hashes are defined on little-endian bytes");

namespace {

template <typename T>
T* capsule_pointer(nb::handle capsule, const char* name) {
  auto* pointer = static_cast<T*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (pointer == nullptr) throw nb::python_error();
  return pointer;
}

std::shared_ptr<Chunk> make_chunk(nb::handle schema_capsule, nb::handle array_capsule, HashCache& cache, uint64_t seed) {
  auto* schema = capsule_pointer<ArrowSchema>(schema_capsule, "arrow_schema");
  auto* array = capsule_pointer<ArrowArray>(array_capsule, "arrow_array");
  if (std::string(schema->format) != "+s") throw nb::value_error("a chunk is made from a record batch");
  nb::gil_scoped_release release;
  return std::make_shared<Chunk>(schema, array, cache, seed);
}

// A Python object that any thread may let go of.
std::shared_ptr<nb::object> shared(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* last) {
            if (!Py_IsInitialized()) return;  // the process ends, and takes it along
            nb::gil_scoped_acquire hold;
            delete last;
          }};
}

// An arena whose blocks are what `make(bytes)` returns, arrays of uint8; without it, ordinary memory.
std::shared_ptr<Arena> make_arena(nb::object make) {
  if (make.is_none()) return std::make_shared<Arena>();
  return std::make_shared<Arena>([make = shared(std::move(make))](size_t capacity) -> Memory {
    nb::gil_scoped_acquire hold;
    nb::object made = (*make)(capacity);
    auto bytes = nb::cast<nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>(made);
    if (bytes.size() < capacity) throw nb::value_error("a block is smaller than it was asked to be");
    return {std::shared_ptr<uint8_t>(shared(std::move(made)), bytes.data()), capacity};
  });
}

nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> handed_out(std::unique_ptr<Arena::Block> block, size_t bytes) {
  uint8_t* data = block->data();
  nb::capsule owner(block.release(), [](void* p) noexcept { delete static_cast<Arena::Block*>(p); });
  return {data, {bytes}, owner};
}

using Index = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const char* fault_name(Fault::What what) {
  switch (what) {
    case Fault::What::NullRow: return "null row";
    case Fault::What::NullElement: return "null element";
    case Fault::What::WeightCount: return "weight count";
    default: return "width";
  }
}

// (block, sections, starts) on success, (kind, column, chunk, row, found, wanted) on a fault in the data.
nb::object pack(const Packer& packer, const std::vector<std::shared_ptr<Chunk>>& chunks, const RowChoice& rows, Arena& arena) {
  std::vector<const Chunk*> pointers;
  for (const auto& chunk : chunks) pointers.push_back(chunk.get());
  Packed packed;
  std::optional<Fault> fault;
  {
    nb::gil_scoped_release release;
    fault = packer.pack(pointers, rows, arena, packed);
  }
  if (fault)
    return nb::make_tuple(fault_name(fault->what), fault->column, fault->chunk, fault->row, fault->found, fault->wanted);
  const Layout& at = packed.layout;
  return nb::make_tuple(
      nb::cast(handed_out(std::move(packed.block), at.bytes)),
      nb::make_tuple(at.offsets, at.values, at.weights, at.matrix[0], at.matrix[1], at.matrix[2]), nb::cast(packed.starts));
}

nb::object pack_runs(const Packer& packer, const std::vector<std::shared_ptr<Chunk>>& chunks,
                     const std::vector<std::vector<int64_t>>& runs, Arena& arena) {
  RowChoice rows{};
  for (const auto& run : runs) {
    if (run.size() != 3 || run[0] < 0 || run[0] >= static_cast<int64_t>(chunks.size()) || run[1] < 0 ||
        run[1] > run[2] || run[2] > chunks[run[0]]->rows())
      throw nb::value_error("a run is (chunk, start, stop) inside that chunk");
    rows.runs.push_back({run[0], run[1], run[2]});
    rows.count += run[2] - run[1];
  }
  return pack(packer, chunks, rows, arena);
}

nb::object pack_rows(const Packer& packer, const std::vector<std::shared_ptr<Chunk>>& chunks, const Index& chunk_of,
                     const Index& row_of, Arena& arena) {
  if (chunk_of.size() != row_of.size()) throw nb::value_error("chunk_of and row_of differ in length");
  RowChoice rows{static_cast<int64_t>(row_of.size()), {}, chunk_of.data(), row_of.data()};
  for (int64_t j = 0; j < rows.count; ++j)
    if (rows.chunk_of[j] < 0 || rows.chunk_of[j] >= static_cast<int64_t>(chunks.size()) || rows.row_of[j] < 0 ||
        rows.row_of[j] >= chunks[rows.chunk_of[j]]->rows())
      throw nb::value_error("a row lies outside its chunk");
  if (rows.count == 0) return pack(packer, chunks, RowChoice{}, arena);
  return pack(packer, chunks, rows, arena);
}

void hash_bytes(uintptr_t offsets, int width, uintptr_t data, int64_t n, uintptr_t out, uint64_t seed) {
  nb::gil_scoped_release release;
  const auto at = [&](int64_t i) {
    return width == 4 ? reinterpret_cast<const int32_t*>(offsets)[i] : reinterpret_cast<const int64_t*>(offsets)[i];
  };
  for (int64_t i = 0; i < n; ++i)
    reinterpret_cast<uint64_t*>(out)[i] = xxh64(reinterpret_cast<const uint8_t*>(data) + at(i), at(i + 1) - at(i), seed);
}

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a dataset that lives until the interpreter ends is no leak
  m.doc() = "C++ core of hybridrec: packing of Arrow chunks into batches, XXH64, permutations.";

  m.def("xxh64", [](nb::bytes data, uint64_t seed) {
    return xxh64(reinterpret_cast<const uint8_t*>(data.c_str()), data.size(), seed);
  }, nb::arg("data"), nb::arg("seed") = 0);
  m.def("hash_int64", [](uintptr_t in, int64_t n, uintptr_t out, uint64_t seed) {
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < n; ++i)
      reinterpret_cast<uint64_t*>(out)[i] = xxh64_int(reinterpret_cast<const uint64_t*>(in)[i], seed);
  }, nb::arg("addr"), nb::arg("n"), nb::arg("out_addr"), nb::arg("seed"));
  m.def("hash_bytes", &hash_bytes, nb::arg("offsets_addr"), nb::arg("offset_width"), nb::arg("data_addr"), nb::arg("n"),
        nb::arg("out_addr"), nb::arg("seed"));
  m.def("permutation", [](int64_t n, uint64_t key, uintptr_t out) {
    nb::gil_scoped_release release;
    permutation(n, key, reinterpret_cast<int64_t*>(out));
  }, nb::arg("n"), nb::arg("key"), nb::arg("out_addr"));

  nb::class_<Arena>(m, "Arena")
      .def_static("create", &make_arena, nb::arg("make") = nb::none())
      .def("take", [](Arena& self, size_t bytes) { return handed_out(self.take(bytes), bytes); }, nb::arg("bytes"));
  nb::class_<HashCache>(m, "HashCache").def(nb::init<>());
  nb::class_<Chunk>(m, "Chunk")
      .def_static("create", &make_chunk, nb::arg("schema"), nb::arg("array"), nb::arg("cache"), nb::arg("seed"))
      .def_prop_ro("rows", &Chunk::rows);

  nb::enum_<Null>(m, "Null").value("Error", Null::Error).value("Default", Null::Default).value("Empty", Null::Empty);
  nb::class_<IdField>(m, "IdField")
      .def("__init__",
           [](IdField* self, int column, int64_t hotness, Null null, Null element_null, std::vector<int64_t> row_default,
              int64_t element_default, int weights) {
             new (self) IdField{column, hotness, null, element_null, std::move(row_default), element_default, weights};
           },
           nb::arg("column"), nb::arg("hotness"), nb::arg("null"), nb::arg("element_null"), nb::arg("row_default"),
           nb::arg("element_default"), nb::arg("weights") = -1);
  nb::class_<DenseField>(m, "DenseField")
      .def("__init__",
           [](DenseField* self, int column, int matrix, int64_t at, int64_t width, Null null,
              std::vector<float> row_default) {
             new (self) DenseField{column, matrix, at, width, null, std::move(row_default)};
           },
           nb::arg("column"), nb::arg("matrix"), nb::arg("at"), nb::arg("width"), nb::arg("null"), nb::arg("row_default"));
  nb::class_<Packer>(m, "Packer")
      .def(nb::init<std::vector<IdField>, std::vector<DenseField>>(), nb::arg("ids"), nb::arg("dense"))
      .def("pack_runs", &pack_runs, nb::arg("chunks"), nb::arg("runs"), nb::arg("arena"))
      .def("pack_rows", &pack_rows, nb::arg("chunks"), nb::arg("chunk_of"), nb::arg("row_of"), nb::arg("arena"));
  bind_tables(m);
  bind_embedding(m);
  bind_disk(m);
  bind_layers(m);
  bind_parallel(m);
}
