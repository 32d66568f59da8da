from __future__ import annotations

import pytest
import torch

from hybridrec.embedding.devices import device_of, refuse_on_gpu


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


def test_plain_parameters_are_moved_by_torch():
    with pytest.raises(ValueError, match=r"move it with \.to\('cuda'\)"):
        refuse_on_gpu(fused=False)
