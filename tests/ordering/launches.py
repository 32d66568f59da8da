"""Launches of Triton's kernels on the stand-in card: what their programs really load, store and update."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.ordering.card import Card
from tests.ordering.memory import READS, UPDATES, WRITES


class Launch:
    """The addresses that a launch has touched."""

    def __init__(self) -> None:
        self.acquired: set[int] = set()  # addresses of atomic operations by which it follows others
        self.released: set[int] = set()  # and by which others follow it
        self._touched: dict[tuple[str, int], list[Any]] = {}  # by how, and the bytes of each

    def note(self, pointers: Any, mask: Any, kind: str) -> None:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        at = np.asarray(pointers.data).ravel()
        if mask is not None:
            at = at[np.broadcast_to(mask.data, pointers.data.shape).ravel()]
        if len(at):
            self._touched.setdefault((kind, size), []).append(at)

    def end(self, card: Card, name: str) -> None:
        """All of it is done: by the current stream."""
        who = card.current.who
        for address in self.acquired & card.released.keys():
            card.clocks.follow(who, card.released[address])
        deed = card.deed(who, f"kernel {name}")
        for (kind, size), parts in sorted(self._touched.items()):
            at = np.unique(np.concatenate(parts).astype(np.int64))
            while len(at):
                block = card.memory.find(int(at[0]))
                if block is None:
                    card.wrong(f"memory that a card cannot reach is {kind} by kernel {name}")
                    break
                mine = at[: np.searchsorted(at, block.address + block.size)]
                at = at[len(mine) :]
                bytes_of = ((mine - block.address)[:, None] + np.arange(size)).ravel()
                card.access(block, bytes_of, deed, kind)
        for address in self.released:
            card.released[address] = card.clocks.seen(who)


def watch(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the interpreter tell the card what launches do."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    launches: list[Launch] = []
    run = GridExecutor.__call__

    def launched(executor: Any, *args: Any, **kwargs: Any) -> None:
        launches.append(Launch())
        with torch._C.DisableTorchFunction(), card.quiet():
            run(executor, *args, **kwargs)
        launch = launches.pop()
        if not card.here.quiet:
            launch.end(card, executor.fn.__name__)

    monkeypatch.setattr(GridExecutor, "__call__", launched)

    def noting(name: str, pointers: int, mask: int | None, kind: str) -> None:
        own = getattr(InterpreterBuilder, name)

        def noted(builder: Any, *args: Any) -> Any:
            launches[-1].note(args[pointers], None if mask is None else args[mask], kind)
            return own(builder, *args)

        monkeypatch.setattr(InterpreterBuilder, name, noted)

    noting("create_masked_load", 0, 1, READS)
    noting("create_masked_store", 0, 2, WRITES)
    noting("create_atomic_cas", 0, None, UPDATES)
    noting("create_atomic_rmw", 1, 3, UPDATES)
    _follow_semantics(launches, monkeypatch)


def _follow_semantics(launches: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who acquires what another stream has released comes after it: where a kernel says just that, and no more.

    By default operations do both, whether or not anybody relies on it, so those order nothing here.
    """
    from triton._C.libtriton.ir import MEM_SEMANTIC
    from triton.runtime.interpreter import InterpreterBuilder

    own = InterpreterBuilder.create_atomic_rmw

    def updated(builder: Any, op: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        addresses = {int(each) for each in np.asarray(pointers.data).ravel()}
        if sem == MEM_SEMANTIC.ACQUIRE:
            launches[-1].acquired |= addresses
        elif sem == MEM_SEMANTIC.RELEASE:
            launches[-1].released |= addresses
        return own(builder, op, pointers, value, mask, sem, scope)

    monkeypatch.setattr(InterpreterBuilder, "create_atomic_rmw", updated)
