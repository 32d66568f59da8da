"""Where ranks find each other before they have connections: a store of torch, kept by torchrun or by rank 0."""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] (documented there)


def meeting_place(timeout: float, *, opens: bool) -> PrefixStore:
    """A connection of its own to the store at MASTER_ADDR and MASTER_PORT; rank 0 `opens` it, unless torchrun has.

    What a world that torchrun has ended left there is not for the one that it starts next.
    """
    by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=opens and not by_torchrun and os.environ["RANK"] == "0",
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=True,
    )
    return PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
