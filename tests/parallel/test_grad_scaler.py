"""torch.amp.GradScaler over ranks: an overflow on one of them skips the step on all."""

from __future__ import annotations

import pytest

from tests.parallel import standard
from tests.parallel.equality import CLOSE, compare_stores, same
from tests.parallel.jobs.scaled import train_alone
from tests.parallel.pool import pool

SIZES = [[[3, 2]], [[2, 2]], [[1, 4]], [[3, 3]]]


@pytest.mark.parametrize(("rank", "unscale"), [(0, False), (1, True)])
@pytest.mark.parametrize("scheme", standard.ANY)
def test_an_overflow_on_one_rank_skips_the_step_on_all(scheme: str, rank: int, unscale: bool) -> None:
    case = standard.case(2, scheme, sizes=SIZES)
    given = {"case": case.to_json(), "rank": rank, "unscale": unscale}
    found, wanted = pool(2).run("tests.parallel.jobs.scaled:train", **given), train_alone(case, unscale)
    assert [each["scale"] for each in found] == [wanted["scale"]] * 2 == [64.0 * 2**3 / 2] * 2
    compare_stores([each["final"] for each in found], wanted["final"], CLOSE, "rows")
    for each in found:
        for name, expected in wanted["weights"].items():
            same(each["weights"][name], expected, CLOSE, name)
