"""Tables of a server that are looked up together: what a lookup counts, it counts once, wherever a kill comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridrec.server.client import Servers, Session
from hybridrec.server.declaration import Declaration
from hybridrec.server.directory import Directory
from hybridrec.server.protocol import Refusal
from hybridrec.server.row_group import Asked, RowGroup, Tag
from hybridrec.server.rows import Rows
from hybridrec.server.shard import Shard
from tests.server.counting import counter

IDS = np.array([5, 6, 6, 7], np.int64)
OPTIONS = [{"eviction": "lfu"}, {"min_count": 3}, {"min_count": 3, "eviction": "lfu"}]


def opened(folder: Path, *tables: Declaration) -> list[Rows]:
    directory = Directory(folder, 0, 1)
    return [Rows(each, 1, directory.open(each, 1)) for each in tables]


def seen(rows: Rows) -> dict[str, Any]:
    """All that a lookup changes."""
    data, sketch = rows.read(rows.ids()), rows.native.sketch()
    counts = None if data.counts is None else data.counts.tolist()
    return {
        "ids": data.ids.tolist(),
        "counts": counts,
        "sketch": None if sketch is None else sketch.tobytes(),
        "figures": rows.counters(),
    }


def asked(ids: np.ndarray, tables: int = 1) -> Asked:
    return Asked(np.arange(tables), np.full(tables, len(ids)), np.tile(ids, tables))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_lookup_that_is_sent_again_to_a_server_that_was_killed_counts_once(options, tmp_path):
    def trainer() -> tuple[Shard, Session]:
        shard = Shard(path=tmp_path / "killed")
        session = Session(Servers.direct([shard]), 4)
        session.attach(0, [counter(**options)])
        return shard, session

    def look(session: Session, step: int) -> list[float]:
        return session.lookup(0, 0, step, [0], [len(IDS)], IDS, train=True).result().tolist()

    shard, session = trainer()
    first = look(session, 0)  # the answer to which is lost
    before = seen(shard.tables["count"])
    shard.close()
    shard, session = trainer()
    assert look(session, 0) == first
    assert seen(shard.tables["count"]) == before
    session.push(0, 0, 0, [], [], IDS[:0], np.empty(0, np.float32), np.empty((0, 13))).result()
    look(session, 1)
    assert seen(shard.tables["count"]) != before, "another step counts"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tables_that_had_counted_when_the_server_was_killed_do_not_count_again(options, tmp_path):
    done, undone = opened(tmp_path / "a", counter("a", **options), counter("b", **options))
    [once] = opened(tmp_path / "once", counter("b", **options))
    RowGroup([done]).lookup(asked(IDS), True, Tag(9, 4, 0))
    vectors, found = RowGroup([done, undone]).lookup(asked(IDS, 2), True, Tag(9, 4, 0))
    wanted = RowGroup([once]).lookup(asked(IDS), True, Tag(9, 4, 0))[0]
    assert vectors.tolist() == [*wanted, *wanted]
    assert found.slots.tolist()[: len(IDS)] == done.find(IDS).tolist()
    assert seen(done) == seen(undone) == seen(once)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_lookup_that_a_kill_cuts_off_has_counted_nothing(options, tmp_path):
    [rows] = opened(tmp_path, counter(**options))
    RowGroup([rows]).lookup(asked(IDS), True, Tag(9, 4, 0))
    before = seen(rows)
    rows.native.begin()  # and never ends
    RowGroup([rows]).lookup(asked(IDS), True)
    assert seen(rows) != before
    del rows
    [rows] = opened(tmp_path, counter(**options))
    assert seen(rows) == before


def test_a_lookup_that_is_refused_has_counted_nothing(tmp_path):
    [rows] = opened(tmp_path, counter(capacity=3, eviction="lfu"))
    RowGroup([rows]).lookup(asked(IDS), True, Tag(9, 4, 0))
    before = seen(rows)
    with pytest.raises(Refusal, match="table 'count' holds 3 rows"):
        RowGroup([rows]).lookup(asked(np.arange(5)), True, Tag(9, 4, 1))
    assert seen(rows) == before
    assert not Tag(9, 4, 1).on(rows)


def test_ids_of_a_fixed_table_that_nobody_has_used_have_their_initial_values():
    item = Rows(Declaration("item", 2, 9, eviction="none", rows=9), 1)
    user = Rows(Declaration("user", 3, 9), 1)
    both = RowGroup([item, user])
    pairs = Asked(np.array([0, 1]), np.array([2, 1]), np.array([4, 8, 4]))
    vectors, _ = both.lookup(pairs, train=False)
    assert vectors.tolist() == [*item.declaration.initial(np.array([4, 8])).ravel(), 0, 0, 0]
    assert both.lookup(pairs, train=True)[0][:4].tolist() == vectors[:4].tolist()
    assert (item.ids().tolist(), user.ids().tolist()) == ([4, 8], [4])


@pytest.mark.parametrize("id", [-1, 9])
def test_ids_beyond_a_fixed_table_are_refused_before_anybody_is_counted(id):
    item, user = Rows(Declaration("item", 2, 9, eviction="none", rows=9), 1), Rows(Declaration("user", 3, 9), 1)
    both = RowGroup([user, item])
    with pytest.raises(Refusal, match=rf"table 'item' has rows 0 … 8, and there is none of id {id}"):
        both.check(Asked(np.array([0, 1]), np.array([1, 1]), np.array([4, id])))
    assert len(user) == 0
