from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hybridrec as hr
from hybridrec.embedding.devices import device_of, refuse_on_gpu
from hybridrec.remedy import on_command_line


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"device is 'cuda', but torch .* finds no GPU; leave device out"):
        device_of("cuda")


def test_the_current_gpu_gets_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert device_of("cuda") == torch.device("cuda", 3)
    assert device_of("cuda:1") == torch.device("cuda", 1)


@pytest.mark.parametrize("name", ["tpu", "mps", "", "cuda:x"])
def test_devices_that_hold_no_rows_are_named(name):
    with pytest.raises(ValueError, match=f"device is '{name}'; rows live on 'cpu' or on 'cuda'"):
        device_of(name)


def test_several_ranks_refuse_a_dynamic_table_by_name_and_its_remedies_are_told():
    table = hr.Table("item", dim=4, capacity=10)
    refuse_on_gpu([table], fused=True)
    told = r"table 'item' is dynamic, .*; give it where='host', .* or rows= \(and out_of_range='hash'"
    with pytest.raises(ValueError, match=told) as caught:
        refuse_on_gpu([table], fused=True, many=True)
    for remedy in ("""{"item"={where="host"}}""", """{"*"={rows=1000000, out_of_range="hash"}}"""):
        assert f"model.tables='{remedy}'" in on_command_line(caught.value)
    refuse_on_gpu([replace(table, where="host")], fused=True, many=True)


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 10, "out_of_range": "hash"},
        {"rows": 10, "dtype": torch.bfloat16, "combiner": "max"},
        {"hashes": hr.embedding.MultiHash(2, 5)},
    ],
)
def test_fixed_tables_of_all_kinds_are_taken(options):
    refuse_on_gpu([hr.Table("item", dim=4, **options)], fused=True)


def test_plain_parameters_are_moved_by_torch():
    with pytest.raises(ValueError, match=r"move it with \.to\('cuda'\)"):
        refuse_on_gpu([], fused=False)
