"""The iterator that a user holds: a loader's batches, as many as all ranks agreed on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hybridrec.data.loader import Loader
from hybridrec.types import Batch

if TYPE_CHECKING:
    from hybridrec.data.cursor import Progress


class BatchIterator(Iterator[Batch]):
    """Hands out a loader's batches and closes it at the end, on `close()`, and when it is garbage collected.

    `steps` is how many batches all ranks agree on: fewer than the loader has (they stop together), or more (the last
    ones are empty). None: as many as the loader has. Batches that a bad file left empty are passed over unless ranks
    must keep step.
    """

    def __init__(
        self,
        loader: Loader,
        empty: Callable[[], Batch],
        steps: int | None,
        lockstep: bool,
        progress: Progress,
    ) -> None:
        self.loader, self._empty, self._steps = loader, empty, steps
        self._lockstep, self.progress = lockstep, progress
        self._over = False
        self._finalize = weakref.finalize(self, loader.close)

    def __next__(self) -> Batch:
        while self._steps != 0 and not self._over:
            try:
                batch = self.loader.take() if self._finalize.alive else None
            except BaseException:
                self.close()
                raise
            if batch is None:
                self._finalize()
                if self._steps is None:
                    break
                batch = self._empty()
            self._steps = None if self._steps is None else self._steps - 1
            self.progress.step()
            if len(batch) or self._lockstep:
                return batch
        if not self._over:
            self._stop()
            self.progress.end(self.loader.lost)
        raise StopIteration

    def close(self) -> None:
        """Stop the threads; the iterator is over, and the dataset stands where it is."""
        if not self._over:
            self._stop()
            self.progress.leave()

    def _stop(self) -> None:
        self._over = True
        self._finalize()
