"""The numbers by which the kernel knows rules, and the places in a parameter's line."""

from __future__ import annotations

import triton.language as tl

ADAGRAD, ADAM, ADAMW, SGD, MOMENTUM, NESTEROV = (tl.constexpr(rule) for rule in range(6))
RULES = {"adagrad": 0, "adam": 1, "adamw": 2, "sgd": 3, "momentum": 4, "nesterov": 5}

WEIGHT, GRAD, FIRST, SECOND, COUNT = (tl.constexpr(at) for at in range(5))  # addresses, and how many numbers there are
LINE = tl.constexpr(5)
