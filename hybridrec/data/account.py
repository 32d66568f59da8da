"""The bytes that a loader holds, against the ceiling that it must stay below."""

from __future__ import annotations

from hybridrec.data.assembly import Decoding, Piece
from hybridrec.types import Batch


class Account:
    """Bytes of decoded pieces, by estimate while they are being decoded, and of finished batches.

    `before` is the account of the epoch before: both together stay below the ceiling.
    """

    def __init__(self, ceiling: int, row_bytes: float, before: Account | None = None) -> None:
        self.held = 0
        self._ceiling, self._row_bytes, self._before = ceiling, row_bytes, before

    @property
    def below_ceiling(self) -> bool:
        before = 0 if self._before is None else self._before.held
        return before + self.held < self._ceiling

    def begin(self, piece: Piece) -> None:
        """A piece is going to be decoded; how large it will be is known from those before."""
        piece.bytes = int(piece.span.rows * self._row_bytes)
        self.held += piece.bytes

    def end(self, piece: Piece) -> None:
        """A piece was decoded, or could not be."""
        size = piece.data.bytes if piece.data is not None else 0
        self.held += size - piece.bytes
        piece.bytes = size
        if piece.data is not None and piece.data.rows:
            self._row_bytes = 0.9 * self._row_bytes + 0.1 * size / piece.data.rows

    def free(self, window: Decoding) -> None:
        self.held -= sum(piece.bytes for piece in window.pieces)

    def keep(self, batch: Batch) -> None:
        self.held += _bytes(batch)

    def hand_out(self, batch: Batch) -> None:
        self.held -= _bytes(batch)

    def close(self) -> None:
        """Nothing is held any more."""
        self.held, self._before = 0, None


def _bytes(batch: Batch) -> int:
    return 0 if batch.arena is None else batch.arena.numel()
