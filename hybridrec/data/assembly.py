"""From windows to the rows of a batch: which chunks it needs, and which of their rows in which order."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from hybridrec.data.decode import Chunk, Rows
from hybridrec.data.partition import Span
from hybridrec.data.shuffle import Borders, Window


@dataclass(eq=False)
class Piece:
    """A span to be decoded: rows from `first_row` on of one chunk of a row group."""

    span: Span
    chunk_number: int
    chunk_start: int  # the chunk's first row in its group
    window: Decoding
    data: Chunk | None = None  # stays None where the file was bad and is skipped
    bytes: int = 0  # what it is counted as: an estimate until it is decoded

    @property
    def first_row(self) -> int:
        return self.span.start - self.chunk_start


@dataclass(eq=False)
class Decoding:
    """A window on its way: decoded piece by piece, then packed from."""

    number: int
    window: Window
    done: int  # rows of it that an earlier run has delivered
    pieces: list[Piece] = field(default_factory=list)
    undecoded: int = 0
    unpacked: int = 0  # batches that still need it
    waiting: list[Cut] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    order: tuple[np.ndarray, np.ndarray] | None = None
    error: BaseException | None = None

    @staticmethod
    def begin(number: int, window: Window, done: int, borders: Borders) -> Decoding:
        """With all its pieces, none of them decoded; each span lies inside one chunk."""
        made = Decoding(number, window, done)
        for span in window.spans:
            starts = borders(span.group)
            chunk = int(np.searchsorted(starts, span.start, side="right")) - 1
            made.pieces.append(Piece(span, chunk, int(starts[chunk]), made))
        made.undecoded = len(made.pieces)
        return made


@dataclass(eq=False)
class Cut:
    """One batch on its way: stretches of windows, packed when all of those are decoded."""

    number: int
    parts: list[tuple[Decoding, int, int]]
    undecoded: int = 0

    def pieces(self) -> list[Piece]:
        """The decoded pieces behind the batch; raises what went wrong with any of them."""
        for decoding, _, _ in self.parts:
            if decoding.error is not None:
                raise decoding.error
        return [piece for decoding, _, _ in self.parts for piece in decoding.pieces if piece.data is not None]

    def rows(self) -> Rows:
        """The batch's rows among `pieces()`."""
        in_order = all(d.window.key is None and d.window.spans[0].keep is None for d, _, _ in self.parts)
        return _runs(self.parts) if in_order else _gathered(self.parts)


Part = tuple[Decoding, int, int]


def _runs(parts: list[Part]) -> Rows:
    """Windows read in order hold one piece each: a stretch of one is a run of its chunk."""
    runs: list[list[int]] = []
    for decoding, start, stop in parts:
        (piece,) = decoding.pieces
        if piece.data is not None:
            runs.append([len(runs), piece.first_row + start, piece.first_row + stop])
    return Rows(sum(stop - start for _, start, stop in runs), runs=runs)


def _gathered(parts: list[Part]) -> Rows:
    chunk_of, row_of, before = [], [], 0
    for decoding, start, stop in parts:
        pieces, rows = _order(decoding)
        place = np.full(len(decoding.pieces), -1, np.int32)  # piece -> chunk of this batch, -1: its file was bad
        present = [i for i, piece in enumerate(decoding.pieces) if piece.data is not None]
        place[present] = np.arange(before, before + len(present))
        before += len(present)
        chunk_of.append(place[pieces[start:stop]])
        row_of.append(rows[start:stop])
    chunks, rows = np.concatenate(chunk_of), np.concatenate(row_of)
    if (chunks < 0).any():
        kept = chunks >= 0
        chunks, rows = chunks[kept], rows[kept]
    return Rows(len(rows), chunk_of=chunks, row_of=rows)


def _order(decoding: Decoding) -> tuple[np.ndarray, np.ndarray]:
    """For each row of the window in reading order: its piece, and its row in that piece's chunk (int32)."""
    with decoding.lock:
        if decoding.order is None:
            spans = [(piece.span, piece.chunk_start) for piece in decoding.pieces]
            pieces = np.repeat(np.arange(len(spans), dtype=np.int32), [span.rows for span, _ in spans])
            rows = np.concatenate([(span.indices() - start).astype(np.int32) for span, start in spans])
            if decoding.window.key is not None:
                order = decoding.window.order()
                pieces, rows = pieces[order], rows[order]
            decoding.order = pieces, rows
        return decoding.order
