"""Tables whose rows count updates: they begin at 0, and a gradient g adds g. One lost or doubled update is seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Declaration
from hybridrec.server.protocol import Kind, Message
from tests.patience import PATIENCE

NUMBERS = np.array([[-1.0, 0, 0, 0, 0, 0, 0, 0, 0, np.inf, np.inf, 1, 1]])  # SGD with a rate of -1
RULE = {"kind": "sgd", "state": []}


def counter(name: str = "count", dim: int = 2, capacity: int = 10_000, **options: Any) -> Declaration:
    """A table of counts."""
    return Declaration(name, dim, capacity, init="constant", scale=0.0, **options)


def attached(
    servers: Servers, session: int = 1, trainer: int = 0, trainers: int = 1, staleness: int = 0, **options: Any
) -> Session:
    """A trainer with a table of counts in group 0."""
    made = Session(servers, session, trainer, trainers, staleness=staleness)
    made.attach(0, [counter(**options)])
    for server in range(servers.count):
        made.change(server, Kind.RULE, "count", {"rule": RULE}, together=True).result()
    return made


def look(session: Session, step: int, ids: list[int], server: int = 0, train: bool = True) -> list[float]:
    """The counts of ids, by a lookup of a step."""
    found = session.lookup(server, 0, step, [0], [len(ids)], np.array(ids, np.int64), train=train).result(PATIENCE)
    return found.reshape(-1, 2)[:, 0].tolist()


def push(session: Session, step: int, ids: list[int], server: int = 0) -> Any:
    """One more for each id, in a step."""
    return session.push(server, 0, step, [0], [len(ids)], np.array(ids, np.int64), ones(len(ids)), NUMBERS)


def ones(ids: int) -> np.ndarray:
    return np.ones(2 * ids, np.float32)


def lookup_message(trainer: int, step: int, ids: list[int], session: int = 1, part: int = 0) -> Message:
    fields = {"session": session, "group": 0, "trainer": trainer, "step": step, "part": part, "train": True}
    return Message(Kind.LOOKUP, fields, [np.array([[0, len(ids)]]), np.array(ids, np.int64)])


def push_message(trainer: int, step: int, ids: list[int], session: int = 1) -> Message:
    fields = {"session": session, "group": 0, "trainer": trainer, "step": step}
    buffers = [np.array([[0, len(ids)]]), np.array(ids, np.int64), ones(len(ids)), NUMBERS]
    return Message(Kind.PUSH, fields, buffers)
