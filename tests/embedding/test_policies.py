from __future__ import annotations

import re

import pytest

from hybridrec.embedding import LFU, LRU, TTL, MinCount, MultiHash, Probability
from hybridrec.embedding.policies import admission_of, eviction_of


@pytest.mark.parametrize(
    ("given", "policy"), [("lru", LRU()), ("lfu", LFU()), (TTL(5), TTL(5)), (LFU(), LFU()), (None, None)]
)
def test_eviction_is_named_by_string_or_value(given, policy):
    assert eviction_of("table 't'", given) == policy


@pytest.mark.parametrize("given", ["ttl", "LRU", 3, LRU, Probability(0.5)])
def test_an_unknown_eviction_is_refused_beside_the_valid_ones(given):
    with pytest.raises(ValueError, match=re.escape("table 't': eviction is") + ".*'lru', 'lfu'.*TTL"):
        eviction_of("table 't'", given)


@pytest.mark.parametrize("given", ["min", 3, LRU()])
def test_an_unknown_admission_is_refused_beside_the_valid_ones(given):
    with pytest.raises(ValueError, match=re.escape("valid are Probability(p), MinCount(k) and None")):
        admission_of("table 't'", given)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: TTL(0), "TTL: steps is 0; it must be from 1"),
        (lambda: Probability(0.0), "Probability: p is 0.0; it must be above 0 and at most 1"),
        (lambda: Probability(1.5), "Probability: p is 1.5"),
        (lambda: MinCount(0), "MinCount: k is 0"),
        (lambda: MinCount(65536), "MinCount: k is 65536; it must be from 1 to 65535"),
        (lambda: MultiHash(0, 5), "MultiHash: rounds is 0"),
        (lambda: MultiHash(2, 0), "MultiHash: size is 0"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(made, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        made()


def test_policies_are_values():
    assert TTL(3) == TTL(3) != TTL(4)
    assert repr(MinCount(2)) == "MinCount(k=2)"
    assert MultiHash(3, 100).rows == 300
