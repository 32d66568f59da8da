#define HYBRIDREC_ISA generic
#include "kernels.inl"
