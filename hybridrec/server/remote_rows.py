"""Rows between tensors and messages, and captures of a table on servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hybridrec.embedding.store import Capture, RowData
from hybridrec.server.declared import rule_of
from hybridrec.server.protocol import Kind, Message
from hybridrec.server.rows import RowArrays

if TYPE_CHECKING:
    from hybridrec.server.remote_store import RemoteStore


def arrays_of(data: RowData, dtype: torch.dtype) -> RowArrays:
    """Rows as they travel: in the type of the table, bfloat16 as its bits."""
    rows = data.rows.to(dtype).contiguous()
    bits = rows.view(torch.int16).numpy().view(np.uint16) if dtype == torch.bfloat16 else rows.numpy()
    state = {name: values.float().contiguous().numpy() for name, values in data.state.items()}
    scores = [None if part is None else part.long().contiguous().numpy() for part in (data.touched, data.counts)]
    return RowArrays(data.ids.contiguous().numpy(), bits, state, *scores)


def rows_in(answer: Message, store: RemoteStore, rule: Any = False) -> RowData:
    """The rows that a server answered with."""
    dim, bits = store.dim, "<u2" if store.dtype.itemsize == 2 else "<f4"
    columns = {column.name: column for column in ((store.rule if rule is False else rule) or _NONE).state}
    ids, rows = answer.array(0, "<i8", -1), torch.from_numpy(answer.array(1, bits, -1, dim))
    names = answer.fields["state"]
    shapes = {name: (-1,) if columns[name].per_row else (-1, dim) for name in names}
    state = {name: torch.from_numpy(answer.array(2 + n, "<f4", *shapes[name])) for n, name in enumerate(names)}
    at, scores = 2 + len(names), []
    for name in ("touched", "counts"):
        scores.append(torch.from_numpy(answer.array(at, "<i8", -1)) if answer.fields[name] else None)
        at += answer.fields[name]
    return RowData(torch.from_numpy(ids), rows.view(store.dtype), state, *scores)


class RemoteCapture(Capture):
    """What some servers held at one moment of training; each keeps aside what changes before it is read."""

    def __init__(self, store: RemoteStore, servers: Sequence[int]) -> None:
        self._store, self._servers = store, store.session.servers
        asked = [self._servers.ask(server, Kind.CAPTURE, {"table": store.table.name}) for server in servers]
        told = [each.result() for each in asked]
        self._open = {server: answer.fields["capture"] for server, answer in zip(servers, told, strict=True)}
        self._most = {server: answer.fields["most"] for server, answer in zip(servers, told, strict=True)}
        sketches = [torch.from_numpy(answer.array(0, "<u1", -1)) for answer in told if answer.fields["sketch"]]
        clock, rule = max(answer.fields["clock"] for answer in told), rule_of(told[0].fields["rule"])
        super().__init__(clock, rule, torch.cat(sketches) if sketches else None, sum(self._most.values()))
        self.sketches = len(told)

    def chunks(self, size: int = 65536) -> Iterator[RowData]:
        for place, (server, number) in enumerate(self._open.items()):
            for first in range(0, max(self._most[server], int(self.most == 0 and place == 0)), size):
                fields = {"capture": number, "first": first, "size": size}
                yield rows_in(self._servers.ask(server, Kind.CHUNK, fields).result(), self._store, self.rule)

    def close(self) -> None:
        for server, number in self._open.items():
            self._servers.ask(server, Kind.CLOSE, {"capture": number}).result()
        self._open = {}


class _NoRule:
    state = ()


_NONE = _NoRule()
