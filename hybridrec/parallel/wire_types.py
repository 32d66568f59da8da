"""The types in which vectors travel."""

from __future__ import annotations

import torch
from torch import Tensor

WIRE = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def on_wire(vectors: Tensor, wire: str) -> Tensor:
    """The numbers as they travel: bfloat16 goes as 16 bits that Gloo knows."""
    made = vectors.to(WIRE[wire])
    return made.view(torch.float16) if wire == "bfloat16" else made


def received(vectors: Tensor, wire: str) -> Tensor:
    """The numbers that have travelled, as float32."""
    return (vectors.view(torch.bfloat16) if wire == "bfloat16" else vectors).float()
