"""Which placements a table with a cache can have."""

from __future__ import annotations

import pytest

from hybridrec.embedding import Table
from hybridrec.parallel import Placement
from hybridrec.parallel.plan import SCHEMES, TIERED
from hybridrec.parallel.schemes.tiered import refuse_tiers

BY_COLUMNS = Placement("item", "column", (0, 1), columns=(4, 4))
ON_HOSTS = Placement("item", "row", (0, 1), where="host")


@pytest.mark.parametrize("scheme", TIERED)
def test_schemes_of_whole_rows_are_for_tables_with_a_cache_too(scheme: str) -> None:
    assert scheme in SCHEMES
    refuse_tiers(Table("item", 8, rows=100, cache=10), Placement("item", scheme, (0,)))


@pytest.mark.parametrize(
    ("placement", "reason"),
    [
        (BY_COLUMNS, r"cache=10, and rows with a cache are not split by columns; pin it to 'row' or 'table'"),
        (ON_HOSTS, r"cache=10, which is on a GPU; leave cache= out, or .* pin=\{'item': Pin\(where='device'\)"),
    ],
)
def test_others_are_refused_with_what_to_do(placement: Placement, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        refuse_tiers(Table("item", 8, rows=100, cache=10), placement)
    refuse_tiers(Table("item", 8, rows=100), placement)
