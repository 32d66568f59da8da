from __future__ import annotations

import pytest
import torch

from hybridrec.embedding import Embeddings
from hybridrec.types import Ragged


def made() -> Embeddings:
    """a and c are pooled, of dimension 2 and 1; b is a sequence of dimension 3."""
    flat = torch.arange(6.0).view(2, 3).requires_grad_()
    sequence = Ragged(torch.ones(3, 3), torch.tensor([0, 1, 3]))
    return Embeddings(("a", "b", "c"), (2, 3, 1), flat, {"b": sequence})


def test_pooled_features_are_pieces_of_flat():
    out = made()
    assert out["a"].tolist() == [[0, 1], [3, 4]]
    assert out["c"].tolist() == [[2], [5]]
    assert out["a"].data_ptr() == out.flat.data_ptr()
    assert out.pooled == ("a", "c")


def test_a_sequence_is_ragged_and_not_in_flat():
    out = made()
    assert isinstance(out["b"], Ragged)
    assert out["b"].lengths().tolist() == [1, 2]
    assert list(out.flat.shape) == [2, 3]


def test_backward_puts_the_gradient_of_flat_together_once():
    out = made()
    assert out["a"].grad_fn is out["c"].grad_fn
    (out["a"].sum() + 2 * out["c"].sum()).backward()
    assert out.flat.grad.tolist() == [[1, 1, 2], [1, 1, 2]]


def test_it_is_a_mapping_in_the_order_of_the_features():
    out = made()
    assert (list(out), len(out), list(out.keys())) == (["a", "b", "c"], 3, ["a", "b", "c"])
    assert "b" in out
    assert "x" not in out
    assert list(out.to_dict()) == ["a", "b", "c"]
    assert out.to_dict()["b"] is out["b"]
    assert out != made()


def test_an_unknown_name_is_refused_beside_the_known_ones():
    with pytest.raises(KeyError) as caught:
        made()["x"]
    assert str(caught.value) == "no feature 'x' among these embeddings; there are a, b, c"


def test_only_sequences_leave_an_empty_flat():
    out = Embeddings(("s",), (3,), torch.empty(2, 0), {"s": Ragged(torch.ones(1, 3), torch.tensor([0, 0, 1]))})
    assert out.pooled == ()
    assert out["s"].values.shape == (1, 3)
    with pytest.raises(KeyError, match="there are s"):
        out["t"]


def test_repr_shows_every_feature():
    assert repr(made()).split("\n") == [
        "Embeddings(2 rows, flat [2, 3])",
        "  a  [2, 2]",
        "  b  2 lists of float32 [3], mean length 1.5",
        "  c  [2, 1]",
    ]
