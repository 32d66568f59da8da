"""Joint: a checkpoint that several ranks write together, and how they agree on it while training stands still."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybridrec import host_memory
from hybridrec.optim import RowOptimizer
from hybridrec.parallel.ranks import Ranks, names_of
from hybridrec.train.checkpoint.capture import Capture, capture
from hybridrec.train.checkpoint.contents import Contents
from hybridrec.train.checkpoint.write import PART

FAILED = ".failed.json"  # beside the folder: why there is no checkpoint
SEEN_WITHIN = 10.0  # seconds until a rank sees the folder that another one made

Opener = Callable[[contextlib.ExitStack], tuple[Path, int]]


@dataclass
class Joint:
    """A checkpoint that this rank and others are about to write."""

    team: Ranks
    final: Path
    number: int
    step: int
    captured: Capture
    size: int  # bytes of all ranks
    wait: bool  # whether training stands still meanwhile
    held: contextlib.ExitStack  # the lock of the folder, on rank 0
    patience: float = field(default=0.0)  # seconds without progress that a rank waits for another

    def __post_init__(self) -> None:
        self.patience = self.patience or self.team.timeout

    @property
    def rank(self) -> int:
        return self.team.rank

    @property
    def part(self) -> Path:
        """The folder while it is not complete."""
        return self.final.with_name(self.final.name + PART)

    @property
    def failure(self) -> Path:
        """The file that is there when there will be no such checkpoint."""
        return self.final.with_name(self.final.name + FAILED)

    def close(self) -> None:
        """Let the tables and the folder go."""
        self.captured.close()
        self.held.close()


def begin(team: Ranks, directory: Path, contents: Contents, step: int, opened: Opener) -> Joint:
    """Capture what this rank saves, and agree on a folder; where a rank cannot, all of them raise.

    `opened` locks and clears the folder of checkpoints on rank 0, and gives the path and the number of the next one.
    """
    with contextlib.ExitStack() as undo:
        draft = _Draft(undo.enter_context(contextlib.ExitStack()), {"step": step})
        try:
            draft.make(team.rank, contents, opened, undo)
        except Exception as caught:
            draft.error = caught
            draft.told["error"] = f"{type(caught).__name__}: {caught}"
        every = team.all_told(draft.told)
        if draft.error is not None:
            raise draft.error
        _check(every, step)
        assert draft.captured is not None, "what cannot be captured is an error"
        size, wait = sum(each["bytes"] for each in every), any(each["wait"] for each in every)
        place = directory / every[0]["name"], every[0]["number"], step
        joint = Joint(team, *place, draft.captured, size, wait, draft.held)
        _check_seen(team, joint.part)
        undo.pop_all()  # from here on, `joint.close` does it
    return joint


@dataclass
class _Draft:
    """What a rank has ready before it knows about the others."""

    held: contextlib.ExitStack
    told: dict[str, Any]
    captured: Capture | None = None
    error: Exception | None = None

    def make(self, rank: int, contents: Contents, opened: Opener, undo: contextlib.ExitStack) -> None:
        """Capture what this rank saves; on rank 0 also make the folder."""
        self.captured = undo.enter_context(contextlib.closing(capture(contents, rank)))
        self.told |= _facts(contents, self.captured)
        if rank == 0:
            final, number = opened(self.held)
            part = final.with_name(final.name + PART)
            undo.callback(shutil.rmtree, part, ignore_errors=True)
            (part / "tables").mkdir(parents=True)
            self.told |= {"name": final.name, "number": number}


def _facts(contents: Contents, captured: Capture) -> dict[str, Any]:
    rows = [each for each in contents.optimizers.values() if isinstance(each, RowOptimizer)]
    return {
        "bytes": captured.bytes,
        "wait": host_memory.lacks(captured.host_bytes, host_memory.available()),
        "files": [captured.part(name).file for name in captured.rows],
        "tables": list(captured.tables),
        "steps of row optimizers": [{table: each.steps_of(table) for table in each.tables} for each in rows],
    }


def _check(every: list[dict[str, Any]], step: int) -> None:
    """Raise where a rank has failed, ranks differ, or two of them would write the same file."""
    failed = [rank for rank, each in enumerate(every) if "error" in each]
    if failed:
        raise RuntimeError(
            f"step {step} was not saved, since {names_of(failed)} could not: {every[failed[0]]['error']}"
        )
    for what in ("step", "tables", "steps of row optimizers"):
        strange = [rank for rank, each in enumerate(every) if each[what] != every[0][what]]
        if strange:
            raise ValueError(
                f"ranks would save different {what}: rank 0 has {every[0][what]}, rank {strange[0]} has "
                f"{every[strange[0]][what]}; let all of them save the same model at the same step"
            )
    writers: dict[str, int] = {}
    for rank, each in enumerate(every):
        for file in each["files"]:
            if writers.setdefault(file, rank) != rank:
                raise ValueError(
                    f"ranks {writers[file]} and {rank} would both write {file}; make the model with hr.shard, so that "
                    "one of them does"
                )


def _check_seen(team: Ranks, part: Path) -> None:
    """Raise where a rank does not see the folder that rank 0 has made."""
    until = time.monotonic() + SEEN_WITHIN
    while not part.is_dir() and time.monotonic() < until:
        time.sleep(0.05)
    blind = [rank for rank, seen in enumerate(team.all_told(part.is_dir())) if not seen]
    if blind:
        raise OSError(
            errno.ENOENT,
            f"{names_of(blind)} cannot see {part}, which rank 0 has made; put checkpoints on a file system that all "
            "ranks share",
        )
