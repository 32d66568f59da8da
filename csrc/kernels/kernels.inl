// One instruction set's kernels: HYBRIDREC_ISA names its namespace, and everything below lives in it. Standard
// headers come before, and nothing of theirs that is a template may be called in here: the linker would keep one copy.
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../half.h"
#include "../philox.h"
#include "kernels.h"

namespace hybridrec::HYBRIDREC_ISA {
namespace {

#include "vec.h"
#include "lanes.h"
#include "draws.h"
#include "pooling.h"
#include "updating.h"
#include "pairing.h"

}  // namespace

#define HYBRIDREC_NAME_OF(isa) #isa
#define HYBRIDREC_NAME(isa) HYBRIDREC_NAME_OF(isa)
const Kernels kTable = {HYBRIDREC_NAME(HYBRIDREC_ISA), init_rows, gather, scatter, pool, weight_gradient, add_gradient,
                        update, pair_dots, pair_dots_gradient};

}  // namespace hybridrec::HYBRIDREC_ISA
