"""Renaming."""

from __future__ import annotations

import pytest

from hybridrec.train.checkpoint.names import renamer

KNOWN = ["emb.item", "emb.items", "emb.user", "top.0.weight"]


def test_without_a_map_names_stay():
    assert [renamer(None, KNOWN)(name) for name in KNOWN] == KNOWN


def test_a_beginning_ends_at_a_dot():
    new = renamer({"emb.item": "emb.product"}, KNOWN)
    assert [new(name) for name in KNOWN] == ["emb.product", "emb.items", "emb.user", "top.0.weight"]


def test_names_may_be_exchanged():
    new = renamer({"emb.item": "emb.user", "emb.user": "emb.item"}, KNOWN)
    assert (new("emb.item"), new("emb.user")) == ("emb.user", "emb.item")


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match=r"rename has 'emb.ite', which the checkpoint does not; it has emb.item, emb"):
        renamer({"emb.ite": "a"}, KNOWN)


def test_two_names_must_not_become_one():
    with pytest.raises(
        ValueError, match=r"makes 'emb.user' of both 'emb.item' and 'emb.user'; give them different names"
    ):
        renamer({"emb.item": "emb.user"}, KNOWN)
