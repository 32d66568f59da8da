#define HYBRIDREC_ISA avx512
#include "kernels.inl"
