"""Which cards compute in bfloat16."""

from __future__ import annotations

import torch

FROM = 8  # compute capability, from Ampere on


def computes_in_bf16(device: torch.device) -> bool:
    """Whether this device does, which need not be the current one."""
    if device.type != "cuda" or torch.version.hip:  # all cards of AMD that torch knows do
        return True
    return torch.cuda.get_device_capability(device)[0] >= FROM


def check_bf16(device: torch.device) -> None:
    """Refuse a card that does not compute in bfloat16."""
    if computes_in_bf16(device):
        return
    name, (major, minor) = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    raise ValueError(
        f"TrainOptions.bf16 is true, but {name} (compute capability {major}.{minor}) does not compute in bfloat16, "
        f"cards from {FROM}.0 on do; leave it out"
    )
