"""One launch updates all parameters of a group, found by a table of addresses.

A program updates SIZE numbers of one parameter. The formulas are those of torch.optim, in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hybridrec.ops.dense_update.numbers import of

SIZE = 1024  # numbers of a program: enough programs for all of a card, even for small layers


@triton.jit
def address(line, AT: tl.constexpr):
    """A pointer out of a line."""
    return tl.load(line + AT).to(tl.pointer_type(tl.float32))


@triton.jit
def update_parameters(
    lines,  # int64 [parameters, LINE]: addresses, and how many numbers there are
    programs,  # int32 [programs, 2]: parameter, and the first number
    loss,  # float32 []: nothing is done where it is not finite, if GUARDED
    lr,
    eps,
    decay,  # of weights: added to the gradient; adamw: what stays of them
    keep,  # what stays of the second moment, or of the momentum
    first,  # what the gradient adds to the first moment, or to the momentum
    second,  # what its square adds to the second moment
    correction,  # of the second moment's root, by the number of the step
    RULE: tl.constexpr,
    GUARDED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """One step of all parameters, each number read and written once."""
    program = tl.program_id(0)
    line = lines + tl.load(programs + 2 * program) * of.LINE
    at = tl.load(programs + 2 * program + 1) + tl.arange(0, SIZE)
    there = at < tl.load(line + of.COUNT)
    if GUARDED:
        value = tl.load(loss)
        there = there & (value - value == at * 0)  # which NaN and infinity are not
    weights = address(line, of.WEIGHT)
    w = tl.load(weights + at, mask=there, other=0.0)
    g = tl.load(address(line, of.GRAD) + at, mask=there, other=0.0)
    if RULE == of.ADAMW:
        w = w * decay
    else:
        g = g + decay * w
    if RULE == of.ADAGRAD:
        sums = address(line, of.FIRST)
        s = tl.load(sums + at, mask=there, other=0.0) + g * g
        tl.store(sums + at, s, mask=there)
        w = w - lr * (g / (tl.sqrt_rn(s) + eps))
    elif (RULE == of.ADAM) | (RULE == of.ADAMW):
        firsts, seconds = address(line, of.FIRST), address(line, of.SECOND)
        m = tl.load(firsts + at, mask=there, other=0.0)
        m = m + first * (g - m)
        v = tl.load(seconds + at, mask=there, other=0.0) * keep + second * (g * g)
        tl.store(firsts + at, m, mask=there)
        tl.store(seconds + at, v, mask=there)
        w = w - lr * (m / (tl.sqrt_rn(v) / correction + eps))
    elif RULE == of.SGD:
        w = w - lr * g
    else:
        buffers = address(line, of.FIRST)
        b = tl.load(buffers + at, mask=there, other=0.0) * keep + first * g
        tl.store(buffers + at, b, mask=there)
        w = w - lr * (g + keep * b if RULE == of.NESTEROV else b)
    tl.store(weights + at, w, mask=there)
