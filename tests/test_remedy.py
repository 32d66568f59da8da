"""The command line tells its own remedies, also of errors that went through other hands."""

from __future__ import annotations

import pickle

import pytest

from hybridrec.data.source import BadFile, MissingFile
from hybridrec.remedy import on_command_line, remedied, within


def test_an_error_without_a_remedy_of_its_own_is_told_as_it_is():
    assert on_command_line(ValueError("dim is 0")) == "dim is 0"


def test_the_place_is_in_front_of_both():
    error = within("validation data", remedied(ValueError, "no rows", call="call it", setting="set it"))
    assert (str(error), on_command_line(error)) == (
        "validation data: no rows; call it",
        "validation data: no rows; set it",
    )


@pytest.mark.parametrize("kind", [BadFile, MissingFile])
def test_files_have_remedies_for_both_also_after_pickling(kind):
    error = pickle.loads(pickle.dumps(kind("a.parquet", "it is not there")))
    assert type(error) is kind
    assert 'on_bad_file="skip"' in str(error)
    assert 'on_bad_file="skip"' not in on_command_line(error)
