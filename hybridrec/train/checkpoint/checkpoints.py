"""Checkpoints: a folder that holds the last few checkpoints of a run, and the best one."""

from __future__ import annotations

import functools
import os
import re
import shutil
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from hybridrec import host_memory
from hybridrec.parallel.ranks import ranks
from hybridrec.parallel.watch import RankFailure
from hybridrec.train.checkpoint.capture import Capture, capture
from hybridrec.train.checkpoint.contents import Contents
from hybridrec.train.checkpoint.joint import FAILED, Joint, begin
from hybridrec.train.checkpoint.lock import locked
from hybridrec.train.checkpoint.manifest import Manifest, read_manifest
from hybridrec.train.checkpoint.rank_messages import GONE, LEFT
from hybridrec.train.checkpoint.together import write_together
from hybridrec.train.checkpoint.verify import problems_of_files
from hybridrec.train.checkpoint.write import PART, Label, free_name, write
from hybridrec.train.manifest_body import CheckpointError, NewerFormatError

FOLDER = re.compile(r"step-\d{9,}(-\d+)?")


class Checkpoints:
    """The checkpoints in a folder: the last `keep` that were written, and the one said to be best.

    `save` copies what it is given and returns; a thread writes the copy beside the others and renames it into place
    when it is on the disk, so that a folder `step-...` is complete. Leave the `with` block, or call `close()`, so that
    the last one is finished; errors of the thread are raised by the next `save`, `wait` or `close`.

    Where several ranks train together, all of them call `save`, with a folder that all of them see: each writes the
    rows that it holds, and the first one all else. An error of one is an error of all.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with Checkpoints(tempfile.mkdtemp(), keep=2) as checkpoints:
    ...     for step in (10, 20, 30):
    ...         checkpoints.save(Contents(model), step, best=step == 10)
    >>> [path.name for path in checkpoints.all()], checkpoints.latest().name, checkpoints.best().name
    (['step-000000010', 'step-000000020', 'step-000000030'], 'step-000000030', 'step-000000010')
    """

    def __init__(self, directory: Path | str, keep: int = 3) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep is {keep!r}; it must be a whole number from 1 on")
        self.directory = Path(directory)
        self.keep = keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._joint: Joint | None = None

    # -- writing ------------------------------------------------------------------------------------------

    def save(
        self,
        contents: Contents,
        step: int,
        *,
        metrics: Mapping[str, float] | None = None,
        best: bool = False,
        wait: bool = False,
    ) -> None:
        """Copy the contents and have them written; waits for the checkpoint before, and with `wait` for this one.

        It also waits where rows lie on a GPU and the host has no memory for those that change before they are written.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"step is {step!r}; it must be a whole number from 0 on")
        numbers = {name: float(value) for name, value in (metrics or {}).items()}
        self.wait()
        team = ranks()
        if team is None:
            captured = capture(contents)
            wait = wait or host_memory.lacks(captured.host_bytes, host_memory.available())
            work = [functools.partial(self._write, captured, step, best, numbers)]
            del captured
        else:
            joint = self._joint = begin(team, self.directory, contents, step, lambda held: self._open(held, step))
            wait = wait or joint.wait
            work = [functools.partial(self._write_joint, joint, Label(step, joint.number, best, numbers))]
        # Not a daemon: a program that ends without close() still finishes its checkpoint.
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint")
        self._thread.start()
        del work
        if wait:
            self.wait()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, so that `save` would wait."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until the checkpoint that is being written is in place; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = self._joint = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    close = wait

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._joint is not None:  # ranks that are gone are not waited for as long
            self._joint.patience = min(self._joint.patience, GONE if isinstance(error, RankFailure) else LEFT)
        try:
            self.close()
        except Exception as lost:
            if error is None:
                raise
            error.add_note(f"beside it, a checkpoint was lost: {lost}")

    def _run(self, work: list[Callable[[], None]]) -> None:
        """Do what `work` holds, and take it out, so that nobody keeps the copy longer than need be."""
        try:
            work.pop()()
        except BaseException as error:
            for part in (error, error.__cause__):
                traceback.clear_frames(None if part is None else part.__traceback__)
            self._error = error

    def _write(self, captured: Capture, step: int, best: bool, metrics: dict[str, float]) -> None:
        with ExitStack() as held:
            _, number = self._open(held, step)
            self._prune(write(self.directory, captured, Label(step, number, best, metrics)))

    def _write_joint(self, joint: Joint, label: Label) -> None:
        try:
            write_together(joint, label)
            if joint.rank == 0:
                self._prune(joint.final)
        finally:
            joint.close()

    def _open(self, held: ExitStack, step: int) -> tuple[Path, int]:
        """Lock the folder and clear it; the path and the number of the next checkpoint."""
        self.directory.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(self.directory))
        self._clear()
        number = max((manifest.number for manifest in self._manifests().values()), default=0) + 1
        return free_name(self.directory, step), number

    def _clear(self) -> None:
        """Remove what a writer that was killed, or has failed, has left."""
        for part in self.directory.glob(f"step-*{PART}"):
            shutil.rmtree(part)
        for said in self.directory.glob(f"step-*{FAILED}"):
            said.unlink()

    def _prune(self, made: Path) -> None:
        """Remove what need not be kept: renamed first, so that a half-deleted one is not taken for a checkpoint."""
        found = self._manifests()
        kept = {made, _best(found), *list(found)[-self.keep :]}
        for path in found:
            if path not in kept:
                gone = path.with_name(path.name + PART)
                os.rename(path, gone)
                shutil.rmtree(gone)

    # -- what is there ------------------------------------------------------------------------------------

    def all(self) -> list[Path]:
        """The complete checkpoints, in the order in which they were written.

        A damaged one is warned of and passed over; one of a newer format is an error.
        """
        return list(self._manifests(warn=True))

    def latest(self) -> Path | None:
        """The complete checkpoint that was written last."""
        return next(reversed(self.all()), None)

    def best(self) -> Path | None:
        """The checkpoint that was saved last with `best=True`."""
        return _best(self._manifests(warn=True))

    def _manifests(self, *, warn: bool = False) -> dict[Path, Manifest]:
        found = {}
        for path in self.directory.glob("step-*") if self.directory.is_dir() else ():
            if FOLDER.fullmatch(path.name) and (manifest := _complete(path, warn)) is not None:
                found[path] = manifest
        return dict(sorted(found.items(), key=lambda item: (item[1].number, item[1].step)))


def _best(found: Mapping[Path, Manifest]) -> Path | None:
    return next((path for path in reversed(list(found)) if found[path].best), None)


def _complete(path: Path, warn: bool) -> Manifest | None:
    """The manifest of a checkpoint all of whose files are there, in their size."""
    try:
        manifest = read_manifest(path)
        problems = [str(problem) for problem in problems_of_files(path, manifest)]
    except NewerFormatError:
        if warn:  # a run that began anew beside it would be a surprise
            raise
        return None
    except CheckpointError as error:
        manifest, problems = None, [str(error)]
    if not problems:
        return manifest
    if warn and path.is_dir():  # else it has just been removed by another process
        text = f"checkpoint {path} is passed over: {problems[0]}; see hybridrec checkpoint verify {path}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return None
