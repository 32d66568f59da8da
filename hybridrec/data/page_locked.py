"""Page-locked memory: a GPU copies from it by itself, while the host goes on."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger("hybridrec.data")


def page_locked(device: torch.device, size: int) -> np.ndarray:
    """So many bytes that `device` can copy from; ordinary ones, with a warning, where the system locks no more.

    They are of torch's own allocator, which never gives memory back that CUDA still holds for locked.
    """
    try:
        with torch.cuda.device(device):  # else this thread would make a context on the first one
            return _locked(size).numpy()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        log.warning("%d bytes could not be page-locked (%s); batches are copied once more", size, reason)
        return np.empty(size, np.uint8)


def _locked(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
