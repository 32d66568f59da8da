// Run-time choice of SIMD: the loader of the C library picks the best clone of a marked function once.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(HYBRIDREC_NO_CLONES)
#define HYBRIDREC_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HYBRIDREC_SIMD  // other compilers and machines: the portable loop, vectorised as their baseline allows
#endif

// For small functions in headers that the kernels of several instruction sets share: an own copy of such a function
// would be merged by the linker, and could hold instructions the machine lacks.
//
// Also for functions that only fetch memory ahead of its use: GCC takes one for a function without effect, and drops calls
// of it that it has not inlined by then.
#define HYBRIDREC_INLINE inline __attribute__((always_inline))
