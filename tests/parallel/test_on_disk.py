"""Shares of a table in files, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parallel.pool import RankFailed, pool

JOB = "tests.parallel.jobs.on_disk:train"
PARTS = ("ids", "rows", "sums", "top")


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Ten steps in memory."""
    return pool(2).run(JOB, folder=str(tmp_path_factory.mktemp("unharmed")), path=None, steps=10)


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_go_on_from_a_checkpoint_after_one_is_killed(tmp_path: Path, unharmed: list, victim: int):
    told = {"folder": str(tmp_path / "saved"), "path": str(tmp_path / "rows"), "steps": 10}
    with pytest.raises(RankFailed, match=rf"rank {victim}: the process ended"):
        pool(2).run(JOB, save=4, die=[victim, 7], **told)
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == ["share-0-of-2", "share-1-of-2"]
    found = pool(2).run(JOB, resume=True, **told)
    first, second = (set(each["there"]) for each in found)
    assert first, "there were rows when it was opened again"
    assert second
    assert first.isdisjoint(second)
    for ours, theirs in zip(found, unharmed, strict=True):
        assert all(torch.equal(ours[part], theirs[part]) for part in PARTS)


def test_other_ranks_are_told_how_the_table_was_dealt(tmp_path: Path):
    told = {"folder": str(tmp_path / "saved"), "path": str(tmp_path / "rows"), "steps": 2}
    pool(2).run(JOB, **told)
    with pytest.raises(RankFailed, match="has table 'user' in shares of 2, and it is to be opened in shares of 3"):
        pool(3).run(JOB, **told)
