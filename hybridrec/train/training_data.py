"""The data of a fit: its batches epoch by epoch, brought ahead for a GPU or other ranks, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridrec.parallel.sharded_model import ShardedModel
from hybridrec.train.feed import Feed
from hybridrec.train.ids_ahead import IdsAhead
from hybridrec.train.placed import Placed
from hybridrec.train.step import Learner
from hybridrec.types import Batch


class TrainingData:
    """Any iterable of batches; one with `set_epoch`, `state_dict` and `load_state_dict` can be resumed."""

    def __init__(self, data: Any, learner: Learner, accumulate: int = 1) -> None:
        self.data, self._learner = data, learner
        self._ahead = accumulate == 1 and not learner.loss.across  # else what a batch counts for is not known before
        self._feed: Feed | IdsAhead | None = None

    def epoch(self, number: int | None) -> Iterator[Batch | Placed]:
        """The batches of an epoch; None: those that are left of the one that a loaded state is in."""
        if number is not None and hasattr(self.data, "set_epoch"):
            self.data.set_epoch(number)
        learner, position = self._learner, getattr(self.data, "state_dict", None)
        sharded = learner.model if self._ahead and isinstance(learner.model, ShardedModel) else None
        steps = 1 if sharded is None or sharded.served is None else max(1, sharded.served.staleness)
        if learner.device is not None:
            pinned = getattr(self.data, "pinned", None) if learner.device.type == "cuda" else None
            batches = self.data if pinned is None else pinned(learner.device)
            self._feed = feed = Feed(batches, learner.place, learner.device, position)
            if sharded is not None:
                known = sharded.prepare, sharded.forget, lambda: feed.state
                self._feed = IdsAhead(feed, lambda placed: placed, *known, steps=steps)
        elif sharded is not None:
            self._feed = IdsAhead(self.data, learner.place, sharded.prepare, sharded.forget, position, steps)
        else:
            return iter(self.data)
        return self._feed

    def read_ahead(self) -> None:
        """Begin to read the next epoch, where the data can."""
        getattr(self.data, "read_ahead", lambda: None)()

    def close(self) -> None:
        """Read no further."""
        getattr(self.data, "drop_ahead", lambda: None)()

    def epoch_is_done(self) -> None:
        """All batches of the epoch were used."""
        self._feed = None

    def state(self) -> Any:
        """Where it stands, after the batch of the last step; None where it cannot say."""
        if self._feed is not None:
            return self._feed.state
        return self.data.state_dict() if hasattr(self.data, "state_dict") else None

    def load(self, state: Any) -> None:
        """Go on from a state in the middle of an epoch."""
        if not hasattr(self.data, "load_state_dict"):
            raise ValueError(
                f"the checkpoint is of the middle of an epoch, and a {type(self.data).__name__} cannot go on from "
                "there; train from a hybridrec Dataset"
            )
        self.data.load_state_dict(state)
