"""What a device meets is kept until somebody asks; the meta of it is tested on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

from hybridrec.metrics.faults import Faults, _raise_for, _ranges, _widened
from hybridrec.metrics.rows import as_rows


def ranges(scores, labels, weights=None) -> torch.Tensor:
    columns = (None if c is None else torch.tensor(c) for c in (scores, labels, weights))
    return _ranges(as_rows(*columns, None), binary=True)


SOUND = ([0.2, 1.0, 0.0], [0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (([0.2, math.nan], [0.0, 1.0]), "a score is nan"),
        (([0.2, 1.25], [0.0, 1.0]), r"a score is 1.25"),
        (([0.2, 0.1], [0.0, -3.0]), r"a label is -3.0"),
        (([0.2, 0.1], [0.0, math.nan]), "a label is nan"),
        (([0.2, 0.1], [0.0, 0.0], [1.0, -2.0]), r"a weight is -2.0"),
    ],
)
def test_a_fault_is_remembered_among_sound_rows(bad, message):
    _raise_for(_widened(ranges(*SOUND), ranges(*SOUND, [1.0, 0.0, 2.0])), binary=True)
    for first, second in ((ranges(*SOUND), ranges(*bad)), (ranges(*bad), ranges(*SOUND))):
        with pytest.raises(ValueError, match=message):
            _raise_for(_widened(first, second), binary=True)


def test_on_the_cpu_the_error_comes_at_once_and_nothing_is_kept():
    faults = Faults(binary=True)
    with pytest.raises(ValueError, match=r"a score is 7.0"):
        faults.take(as_rows(torch.tensor([7.0]), torch.tensor([0.0]), None, None))
    faults.check()


def test_no_rows_have_no_faults():
    faults = Faults(binary=True)
    faults.take(as_rows(torch.zeros(0), torch.zeros(0), torch.zeros(0), None))
    faults.check()
