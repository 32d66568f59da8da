from __future__ import annotations

import re

import pytest
import torch

from hybridrec.types import Ragged


def vectors() -> Ragged:
    return Ragged(torch.arange(6.0).view(3, 2), torch.tensor([0, 2, 2, 3]))


def test_padding_keeps_the_trailing_dimensions():
    assert vectors().to_padded(value=9).tolist() == [[[0, 1], [2, 3]], [[9, 9], [9, 9]], [[4, 5], [9, 9]]]


def test_a_deep_nest_pads_to_a_length_per_level():
    ragged = Ragged.from_lists([[[1, 2], [3], [4]], []])
    assert ragged.to_padded((2, None)).tolist() == [[[1, 2], [3, 0]], [[0, 0], [0, 0]]]
    assert ragged.to_padded((None, 1)).tolist() == [[[1], [3], [4]], [[0], [0], [0]]]


def test_gradients_pass_through_padding_once_per_value():
    values = torch.ones(3, requires_grad=True)
    Ragged(values, torch.tensor([0, 3, 3])).to_padded(2, value=5).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1, 1, 0]


@pytest.mark.parametrize(("length", "message"), [(2, "1 entries but the nest is 2 deep"), ((-1, 2), "negative")])
def test_lengths_that_do_not_fit_the_nest_are_refused(length, message):
    with pytest.raises(ValueError, match=message):
        Ragged.from_lists([[[1]]]).to_padded(length)


@pytest.mark.parametrize(
    ("shape", "lengths", "message"),
    [
        ((2, 3), [torch.tensor([1])], "lengths of shapes [[1]] do not fit padded [2, 3]"),
        ((2, 3), [torch.tensor([1, 4])], "lie in 0..3, got 1..4"),
        ((2, 3), [torch.tensor([-1, 1])], "lie in 0..3, got -1..1"),
        ((2,), [torch.tensor([1, 1])], "no dimension for 1 list levels"),
        ((2, 3), [], "do not fit"),
        ((1, 2, 3), [torch.tensor([1]), torch.tensor([[1]])], "lengths of shapes [[1], [1, 1]] do not fit"),
    ],
)
def test_lengths_that_do_not_fit_the_padded_tensor_are_refused(shape, lengths, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Ragged.from_padded(torch.zeros(shape), lengths)


def test_nested_tensors_share_memory_both_ways():
    ragged = vectors()
    nested = ragged.to_nested()
    nested.unbind()[0][0, 0] = 50
    assert ragged.flat[0, 0] == 50
    assert Ragged.from_nested(nested).flat.data_ptr() == ragged.flat.data_ptr()


def test_a_jagged_tensor_with_holes_is_packed():
    padded = torch.arange(12).view(3, 4)
    nested = torch.nested.narrow(padded, 1, torch.tensor([1, 0, 2]), torch.tensor([2, 0, 2]), layout=torch.jagged)
    assert Ragged.from_nested(nested).to_list() == [[1, 2], [], [10, 11]]


def test_a_strided_nested_tensor_converts_too():
    nested = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.strided)
    assert Ragged.from_nested(nested).to_list() == [[1, 2], [3]]


def test_what_torch_cannot_nest_is_refused():
    with pytest.raises(ValueError, match="this nest has 2"):
        Ragged.from_lists([[[1]]]).to_nested()
    with pytest.raises(TypeError, match="use from_padded"):
        Ragged.from_nested(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="ragged dimension must be 1, got 2"):
        Ragged.from_nested(vectors().to_nested().transpose(1, 2))


@pytest.mark.parametrize("target", ["padded", "nested", "sparse"])
@pytest.mark.parametrize("rows", [["a"], [["a", "b"], []]])
def test_strings_have_no_tensor_layout(target, rows):
    with pytest.raises(TypeError, match=f"strings have no {target} form"):
        getattr(Ragged.from_lists(rows), f"to_{target}")()


def test_sparse_keeps_trailing_dimensions_dense():
    sparse = vectors().to_sparse()
    assert (sparse.sparse_dim(), sparse.dense_dim(), list(sparse.shape)) == (2, 1, [3, 2, 2])
    assert Ragged.from_sparse(sparse).equal(vectors())


def test_sparse_entries_in_any_order_are_sorted_and_not_summed():
    index = torch.tensor([[1, 0, 1], [1, 0, 0]])
    sparse = torch.sparse_coo_tensor(index, torch.tensor([3, 1, 2]), (2, 2), check_invariants=True)
    assert Ragged.from_sparse(sparse).to_list() == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([[0, 1], [0, 1]], "row 1 has position 1 where 0 is due"),
        ([[0, 0], [0, 0]], "row 0 has position 0 where 1 is due"),
    ],
)
def test_sparse_holes_and_repeats_are_refused(index, message):
    with pytest.raises(ValueError, match=message):
        Ragged.from_sparse(
            torch.sparse_coo_tensor(torch.tensor(index), torch.tensor([5, 6]), (2, 3), check_invariants=True)
        )


def test_other_sparse_layouts_are_refused_with_the_remedy():
    for tensor in (torch.zeros(2, 2), torch.zeros(2, 2, 2).to_sparse()):
        with pytest.raises(ValueError, match="2 sparse dimensions"):
            Ragged.from_sparse(tensor)
