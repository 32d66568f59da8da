#include "kernels.h"

namespace hybridrec {

const Kernels& kernels() {
#ifdef HYBRIDREC_X86_KERNELS
  static const Kernels& chosen = [] () -> const Kernels& {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
      return avx512::kTable;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("f16c"))
      return avx2::kTable;
    return generic::kTable;
  }();
  return chosen;
#else
  return generic::kTable;
#endif
}

}  // namespace hybridrec
