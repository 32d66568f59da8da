"""The parts of a table: their names, and which rows they have."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridrec.embedding import Table
from hybridrec.embedding.share import Share
from hybridrec.train.checkpoint.part_info import PartInfo, file_name, sketch_file

NAMES = ["a/b", "a%2Fb", "a b", "A", "ü", "x" * 300, "x" * 301, ".", "..", "item", "item@rows-1-of-2", "item.arrow"]
SHARES = [
    Share(),
    Share(1, 2),
    Share(1, 3, servers=5),
    Share(0, 2),
    Share(1, 22),
    Share(column=2),
    Share(0, 1, 2, 3),
    Share(1, 2, 2, 3),
]


def test_names_of_files_differ_where_tables_or_shares_do():
    files = [file_name(name, share) for name, share in itertools.product(NAMES, SHARES)]
    assert len(set(files)) == len(files)
    assert all("/" not in file and len(file.encode()) < 255 for file in files)


def test_ranks_have_files_of_their_own_for_counts():
    assert len({sketch_file(rank) for rank in (0, 1, 11, 123456)}) == 4


def test_a_part_comes_back_from_json_as_it_was():
    for share in SHARES:
        part = PartInfo("a", 3, share, 16, 2)
        assert PartInfo.from_json(part.to_json()) == part


@given(
    count=st.integers(1, 6),
    own=st.integers(1, 6),
    index=st.integers(0, 5),
    mine=st.integers(0, 5),
    servers=st.tuples(st.sampled_from([0, 6, 11]), st.sampled_from([0, 6, 11])),
)
def test_a_part_meets_the_shares_that_have_rows_of_it_and_is_within_those_that_have_all(
    count, own, index, mine, servers
):
    part = PartInfo("a", share=Share(index % count, count, servers=servers[0]))
    share = Share(mine % own, own, servers=servers[1])
    for table in (Table("item", 1, rows=5000), Table("user", 1, capacity=9)):
        ids = torch.arange(5000)
        held, wanted = (each.owns(table, ids) for each in (part.share, share))
        assert part.meets(share) == bool((held & wanted).any())
        assert part.within(share) == bool(wanted[held].all())
