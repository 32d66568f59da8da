// How memory passes between Python and the core: tensors come as addresses, results go as arrays that own them.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace hybridrec {

using Address = uintptr_t;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

template <typename T>
std::vector<T*> all_at(const std::vector<Address>& addresses) {
  std::vector<T*> out;
  for (Address address : addresses) out.push_back(at<T>(address));
  return out;
}

using Numbers = nanobind::ndarray<nanobind::numpy, int64_t, nanobind::ndim<1>>;

template <typename Array, typename T>
Array owned(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nanobind::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Array(kept->data(), {kept->size()}, owner);
}

}  // namespace hybridrec
