#define HYBRIDREC_ISA avx2
#include "kernels.inl"
