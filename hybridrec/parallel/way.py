"""Way: the routes of a lookup with the native parts that follow them, and Flight, one block on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hybridrec import _native
from hybridrec.parallel.answer import Answers, Holdings
from hybridrec.parallel.exchange import Arriving
from hybridrec.parallel.request import Ids, Request
from hybridrec.parallel.routes import Part, Routes

if TYPE_CHECKING:
    from hybridrec.parallel.sharded_group import ShardedGroup


class Way:
    """The routes of a lookup, with what pools their vectors, made once."""

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.views = [_native.ViewTable(width) for width in routes.widths]
        place = {width: i for i, width in enumerate(routes.widths)}
        specs = [(place[part.piece.width], *_pooling(routes, part)) for part in routes.parts]
        self.pool = _native.TableSet(self.views, specs)
        asking: dict[tuple[str, int], list[int]] = {}
        for number, part in enumerate(routes.parts):
            asking.setdefault((part.kind, part.unit), []).append(number)
        self.groups = list(asking.values())  # parts that have rows in common
        self.sequences = [p for p, part in enumerate(routes.parts) if specs[p][1] == "none"]
        self.maxima = [p for p, part in enumerate(routes.parts) if specs[p][1] == "max"]
        self._layouts: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = {}

    def show(self, runs: Sequence[Tensor]) -> None:
        """Let the views be these vectors, one run for each width."""
        for view, run, width in zip(self.views, runs, self.routes.widths, strict=True):
            view.show(run.data_ptr(), len(run) // width)

    def sequence_shapes(self, request: Request) -> list[tuple[int, int]]:
        """Vectors and width of each part that is not pooled."""
        parts = [(p, self.routes.parts[p]) for p in self.sequences]
        groups = [self.routes.features[part.feature].group for _, part in parts]
        sizes = [
            (request.starts[p + 1] - request.starts[p]) // each for (p, _), each in zip(parts, groups, strict=True)
        ]
        return [(size, part.piece.width) for size, (_, part) in zip(sizes, parts, strict=True)]

    def layout(self, ids: Ids) -> Any:
        """How the parts lie in the positions of such a block."""
        key = ids.hotness, ids.pick
        if key not in self._layouts:
            bags = [part.kind == "bags" for part in self.routes.parts]
            hotness = [1 if bag else ids.hot(part.feature) for bag, part in zip(bags, self.routes.parts, strict=True)]
            lines = [-1 if bag else ids.line(part.feature) for bag, part in zip(bags, self.routes.parts, strict=True)]
            self._layouts[key] = _native.BlockLayout(list(range(len(bags))), hotness, lines)
        return self._layouts[key]


def _pooling(routes: Routes, part: Part) -> tuple[str, int]:
    feature = routes.features[part.feature]
    return ("sum", 1) if part.kind == "bags" else (feature.combiner, feature.group)


class WayOfRanks(Way):
    """The same, with what this rank holds of it."""

    def __init__(self, routes: Routes, group: ShardedGroup) -> None:
        super().__init__(routes)
        self.holdings = Holdings(routes, group)


class Flight:
    """One block on its way: the request, and the answers to what others have asked meanwhile."""

    def __init__(self, way: WayOfRanks, ids: Ids, request: Request, answers: Answers, share: float) -> None:
        self.way, self.ids, self.request, self.answers, self.share = way, ids, request, answers, share
        self.vectors: Arriving | None = None  # once they are on their way
