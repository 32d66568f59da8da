"""The data of a fit: its batches epoch by epoch, brought ahead for a GPU or other ranks, and where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from hybridrec.data.dataset import Dataset
from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.train.feed import Feed, seats_ahead
from hybridrec.train.ids_ahead import IdsAhead
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner
from hybridrec.types import Batch


class TrainingData:
    """Any iterable of batches; one with `set_epoch`, `state_dict` and `load_state_dict` can be resumed."""

    def __init__(self, data: Any, learner: Learner, accumulate: int = 1) -> None:
        self.data, self._learner = data, learner
        self._alone = accumulate == 1  # each batch is a step
        self._ahead = self._alone and not learner.loss.across  # else what a batch counts for is not known before
        self._feed: Feed | IdsAhead | Followed | None = None
        self._thread: Feed | None = None  # the same, or what is behind it
        self._begun: tuple[int | None, Feed] | None = None  # an epoch that is yet to come
        self._seats = seats_ahead()  # of both

    def epoch(self, number: int | None) -> Iterator[Batch | Placed]:
        """The batches of an epoch; None: those that are left of the one that a loaded state is in."""
        learner, position = self._learner, getattr(self.data, "state_dict", None)
        sharded = learner.model if self._ahead and isinstance(learner.model, ShardedModel) else None
        steps = 1 if sharded is None or sharded.served is None else max(1, sharded.served.staleness)
        if learner.device is not None:
            self._feed = self._thread = feed = self._take_begun(number) or self._fed(number, learner.device)
            if sharded is not None:
                known = sharded.prepare, sharded.forget, lambda: feed.state
                self._feed = IdsAhead(feed, lambda placed: placed, *known, steps=steps)
            return self._feed
        self._set_epoch(number)
        if sharded is None and self._alone:
            return iter(self.data)
        if sharded is None:
            self._feed = Followed(self.data, position)
            return self._feed
        self._feed = IdsAhead(self.data, learner.place, sharded.prepare, sharded.forget, position, steps)
        return self._feed

    def _set_epoch(self, number: int | None) -> None:
        if number is not None and hasattr(self.data, "set_epoch"):
            self.data.set_epoch(number)

    def _fed(self, number: int | None, device: torch.device) -> Feed:
        self._set_epoch(number)
        pinned = getattr(self.data, "pinned", None) if device.type == "cuda" else None
        batches = self.data if pinned is None else pinned(device)
        return Feed(batches, self._learner.place, device, getattr(self.data, "state_dict", None), self._seats)

    def begin(self, number: int) -> None:
        """Bring the first batches of this epoch, the next one, to the device once all of the present one are there.

        So they come while the last steps of an epoch, and what is due after it, are done, each when a batch of the
        present epoch has been taken: there are never more on the device than at other times. Others than a Dataset are
        left alone: whoever reads them meanwhile, for a validation, would be in the way.
        """
        device = self._learner.device
        if device is None or self._begun is not None or not isinstance(self.data, Dataset):
            return
        if self._thread is None or self._thread.all_read:
            self._begun = number, self._fed(number, device)

    def _take_begun(self, number: int | None) -> Feed | None:
        begun, self._begun = self._begun, None
        if begun is None or begun[0] == number:
            return begun and begun[1]
        begun[1].close()
        return None

    def read_ahead(self) -> None:
        """Begin to read the next epoch, where the data can."""
        getattr(self.data, "read_ahead", lambda: None)()

    def close(self) -> None:
        """Read no further."""
        if self._begun is not None:
            self._begun[1].close()
        self._begun = None
        getattr(self.data, "drop_ahead", lambda: None)()

    def epoch_is_done(self) -> None:
        """All batches of the epoch were used."""
        self._feed = self._thread = None

    def state(self) -> Any:
        """Where it stands, after the batch of the last step; None where it cannot say."""
        if self._feed is not None:
            return self._feed.state
        if self._begun is not None:
            return self._begun[1].state
        return self.data.state_dict() if hasattr(self.data, "state_dict") else None

    def load(self, state: Any) -> None:
        """Go on from a state in the middle of an epoch."""
        if not hasattr(self.data, "load_state_dict"):
            raise ValueError(
                f"the checkpoint is of the middle of an epoch, and a {type(self.data).__name__} cannot go on from "
                "there; train from a hybridrec Dataset"
            )
        self.data.load_state_dict(state)


class Followed(Iterator[Batch]):
    """The batches of an iterable; `state` is where it stood after the last one.

    Whoever wants more batches for a step than are left has come to the end, where the data stands at the next epoch.
    """

    def __init__(self, batches: Iterable[Batch], position: Callable[[], Any] | None) -> None:
        self._source = iter(batches)
        self._position = position or (lambda: None)
        self.state = self._position()

    def __next__(self) -> Batch:
        batch = next(self._source)
        self.state = self._position()
        return batch

    def close(self) -> None:
        """Read no further."""
        getattr(self._source, "close", lambda: None)()
