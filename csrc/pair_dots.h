// Dot products of all pairs of vectors in each row of a batch: what DLRM's upper layers read.
#pragma once

#include "kernels/kernels.h"

namespace hybridrec {

// Writes out [rows, width]: below, then the pairs i < j in the order of rows of a triangle, then zeros.
void pair_dots(const PairDots& p, int64_t rows, float* out, int64_t width);

// Of the gradient of that, [rows, grad_stride], the gradients of below [rows, dim] and fields [rows, fields_count * dim].
void pair_dots_gradient(const PairDots& p, int64_t rows, const float* grad, int64_t grad_stride, float* of_below,
                        float* of_fields);

}  // namespace hybridrec
