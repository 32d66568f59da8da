"""One transform of each op, and more where its parameters have kinds."""

from __future__ import annotations

from hybridrec.data.transforms import (
    Bucketize,
    Clip,
    Cross,
    Hash,
    IsIn,
    Log1p,
    Modulo,
    Standardize,
    Truncate,
    Vocabulary,
)

EXAMPLES = [
    Hash(3),
    Modulo(10),
    Bucketize([0, 1.5]),
    Log1p(),
    Standardize(1, 2.5),
    Clip(0, None),
    Truncate(3, "last"),
    Vocabulary(["a", "b"], oov="error"),
    Vocabulary([4, 2**63], oov=0),
    IsIn([">50K", "b"]),
    IsIn([-4, 2]),
    Cross("a", "b", buckets=7),
]
