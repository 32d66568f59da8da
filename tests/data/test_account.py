from __future__ import annotations

import numpy as np
import pyarrow as pa

from hybridrec.data.account import Account
from hybridrec.data.assembly import Piece
from hybridrec.data.decode import Chunk, Rows
from tests.data.rows_in_groups import CHUNK, Groups, begun


def decoded(account: Account, piece: Piece, size: int) -> None:
    account.begin(piece)
    piece.data = Chunk(None, {}, CHUNK, size)
    account.end(piece)


def test_a_piece_counts_by_estimate_then_by_its_size_until_its_window_is_freed():
    account, window = Account(1000, row_bytes=10.0), begun(0, (0, 0), (1, 0))
    first, second = window.pieces
    account.begin(first)
    assert account.held == CHUNK * 10
    decoded(account, second, 7)
    assert account.held == CHUNK * 10 + 7
    first.data = Chunk(None, {}, CHUNK, 100)
    account.end(first)
    assert account.held == 107
    account.free(window)
    assert account.held == 0


def test_the_estimate_follows_the_pieces_and_those_without_rows_tell_nothing():
    account = Account(1 << 40, row_bytes=10.0)
    for _ in range(100):
        decoded(account, begun(0, (0, 0)).pieces[0], 50 * CHUNK)
    empty = begun(0, (0, 0)).pieces[0]
    account.begin(empty)
    assert 49 * CHUNK <= empty.bytes <= 50 * CHUNK
    empty.data = Chunk(None, {}, 0, 0)
    account.end(empty)
    again = begun(0, (0, 0)).pieces[0]
    account.begin(again)
    assert 49 * CHUNK <= again.bytes <= 50 * CHUNK


def test_a_piece_that_could_not_be_read_counts_nothing():
    account, window = Account(1000, row_bytes=10.0), begun(0, (0, 0))
    account.begin(window.pieces[0])
    account.end(window.pieces[0])
    assert account.held == 0
    account.free(window)
    assert account.held == 0


def test_batches_count_until_they_are_handed_out():
    decoder, account = Groups().decoder, Account(1000, row_bytes=10.0)
    chunk = decoder.chunk(pa.record_batch({"user": np.arange(100)}), decoder.cache())
    batch = decoder.pack([chunk], Rows(100, runs=[[0, 0, 100]]), lambda chunk, row: "")
    account.keep(batch)
    assert account.held == batch.arena.numel() >= 800
    account.hand_out(batch)
    assert account.held == 0


def test_two_epochs_share_the_ceiling_until_the_first_is_closed():
    first = Account(100, row_bytes=10.0)
    second = Account(100, row_bytes=10.0, before=first)
    decoded(first, begun(0, (0, 0)).pieces[0], 60)
    decoded(second, begun(0, (1, 0)).pieces[0], 40)
    assert first.below_ceiling
    assert not second.below_ceiling
    first.close()
    assert second.below_ceiling
