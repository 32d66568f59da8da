from __future__ import annotations

import math

import pytest

from hybridrec.data.transforms import (
    Bucketize,
    Clip,
    Cross,
    Hash,
    IsIn,
    Modulo,
    Standardize,
    Truncate,
    Vocabulary,
)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Modulo(0), ValueError, "modulo: n is 0"),
        (lambda: Modulo(-4), ValueError, "modulo: n is -4"),
        (lambda: Modulo(2**63), ValueError, "from 1 to"),
        (lambda: Modulo(2.0), TypeError, "whole number"),
        (lambda: Modulo(True), TypeError, "whole number"),
        (lambda: Hash(-1), ValueError, "seed -1"),
        (lambda: Truncate(0), ValueError, "truncate: n is 0"),
        (lambda: Truncate(1, "middle"), ValueError, "valid are 'first', 'last'"),
        (lambda: Bucketize([]), ValueError, "boundaries is empty"),
        (lambda: Bucketize([math.nan]), ValueError, "must be finite"),
        (lambda: Bucketize("123"), TypeError, "must be a list"),
        (lambda: Bucketize(["1"]), TypeError, "must be a number"),
        (lambda: Standardize(0, 0), ValueError, "std is 0"),
        (lambda: Standardize(0, -1), ValueError, "std is -1"),
        (lambda: Standardize(math.inf, 1), ValueError, "mean is inf"),
        (lambda: Clip(2, 1), ValueError, "low 2 is above high 1"),
        (lambda: Clip(), ValueError, "neither low nor high"),
        (lambda: Clip(math.nan, 1), ValueError, "low is nan"),
        (lambda: Vocabulary([]), ValueError, "values is empty"),
        (lambda: Vocabulary(["a", "b", "a"]), ValueError, "key 'a' occurs 2 times"),
        (lambda: Vocabulary([1, 2, 1]), ValueError, "key 1 occurs 2 times"),
        (lambda: Vocabulary(["a", 1]), TypeError, "1 does not fit"),
        (lambda: Vocabulary([0.5]), TypeError, "0.5 does not fit"),
        (lambda: Vocabulary([True, True]), TypeError, "True does not fit"),
        (lambda: Vocabulary({"a", "b"}), TypeError, "must be a list"),
        (lambda: Vocabulary([-1, 2**63]), ValueError, "one 64-bit type"),
        (lambda: Vocabulary(["a", "b"], oov=2), ValueError, "oov 2 is the id of 'b'"),
        (lambda: Vocabulary(["a"], oov="drop"), TypeError, "oov is 'drop'"),
        (lambda: IsIn([]), ValueError, "is_in: values is empty"),
        (lambda: IsIn(">50K"), TypeError, "is_in: values is '>50K'; it must be a list"),
        (lambda: IsIn(["a", "b", "a"]), ValueError, "is_in: key 'a' occurs 2 times"),
        (lambda: IsIn([1, None]), TypeError, "is_in: None does not fit"),
        (lambda: IsIn([-1, 2**63]), ValueError, "is_in: 9223372036854775808 does not fit"),
        (lambda: Cross("a", "b", buckets=0), ValueError, "buckets is 0"),
        (lambda: Cross("a", 3), TypeError, "right is 3"),
    ],
)
def test_an_invalid_parameter_is_an_error_that_names_it(make, error, message):
    with pytest.raises(error, match=message):
        make()
