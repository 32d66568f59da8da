"""The fixture `card`: within a test, CUDA as GPU code knows it is the stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ordering.card import Card
from tests.ordering.stand_in import standing_in


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    with standing_in(monkeypatch) as made:
        yield made
