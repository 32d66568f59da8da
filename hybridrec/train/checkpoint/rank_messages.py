"""What ranks that write a checkpoint say to each other, as files in its folder.

The process group is busy with training meanwhile, in another thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from hybridrec.train.checkpoint.joint import Joint
from hybridrec.train.checkpoint.write import explained

LEFT = 30.0  # seconds without progress that are waited for when the program itself is over
GONE = 3.0  # and where it is over because another rank has failed
PAUSES = 0.01, 0.25  # seconds between two looks, at first and at last


class RankFailedError(Exception):
    """A rank could not write its part; `number` is the errno of the operating system."""

    def __init__(self, rank: int, number: int | None, text: str) -> None:
        super().__init__(f"rank {rank}: {text}")
        self.said = {"rank": rank, "number": number, "text": text}

    def told(self, joint: Joint) -> Exception:
        """What all ranks raise."""
        number = self.said["number"]
        if number is None:
            return RuntimeError(f"the checkpoint of step {joint.step} could not be written: {self}")
        return explained(OSError(number, str(self)), joint.final.parent, joint.step, joint.size)


def failure_of(rank: int, error: BaseException) -> RankFailedError:
    """What happened to a rank, to be told to the others."""
    if isinstance(error, RankFailedError):
        return error
    if isinstance(error, OSError):
        return RankFailedError(rank, error.errno or errno.EIO, error.strerror or str(error))
    return RankFailedError(rank, None, f"{type(error).__name__}: {error}")


def put(path: Path, value: Any) -> None:
    """Write beside and rename, so that nobody reads a half."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(json.dumps(value), encoding="utf-8")
    os.replace(beside, path)


def message_of(joint: Joint, rank: int) -> Path:
    """The file by which a rank says that its part is written."""
    return joint.part / f"rank-{rank:05d}.json"


def put_failure(joint: Joint, failed: RankFailedError) -> None:
    """Say that this rank could not write its part."""
    put(joint.part / f"failed-{joint.rank:05d}.json", failed.said)


def await_message(joint: Joint, rank: int) -> dict[str, Any]:
    """What another rank says when it has written its part; RankFailedError where any of them could not."""
    patience, path = Patience(joint), message_of(joint, rank)
    while not path.exists():
        for failed in sorted(joint.part.glob("failed-*.json")):
            raise RankFailedError(**json.loads(failed.read_text(encoding="utf-8")))
        patience.wait(f"rank {rank} has not written its part")
    return json.loads(path.read_text(encoding="utf-8"))


def await_end(joint: Joint) -> None:
    """Until rank 0 has put the checkpoint in place; RankFailedError where it says that there will be none."""
    patience = Patience(joint, times=2)  # rank 0 is the first to give up, and says why
    while not joint.final.is_dir():
        if joint.failure.exists():
            raise RankFailedError(**json.loads(joint.failure.read_text(encoding="utf-8")))
        if not threading.main_thread().is_alive():
            return  # the program is over, and what this rank had to write is written
        patience.wait("rank 0 has not finished")


class Patience:
    """Waits as long as something is written."""

    def __init__(self, joint: Joint, times: int = 1) -> None:
        self._joint, self._times = joint, times
        self._seen, self._since, self._pause = -1, time.monotonic(), PAUSES[0]

    def wait(self, what: str) -> None:
        """A moment; RankFailedError where nothing has happened for too long."""
        time.sleep(self._pause)
        self._pause = min(1.5 * self._pause, PAUSES[1])
        size = _size(self._joint.part)
        if size != self._seen:
            self._seen, self._since = size, time.monotonic()
        alone = not threading.main_thread().is_alive()
        most = self._times * (min(LEFT, self._joint.patience) if alone else self._joint.patience)
        if time.monotonic() - self._since > most:
            text = f"{what}, and nothing has been written for {most:g} seconds"
            raise RankFailedError(self._joint.rank, errno.ETIMEDOUT, text)


def _size(folder: Path) -> int:
    """Bytes of all files that are there now; they may go meanwhile."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.path.getsize(os.path.join(place, name))
    return size
