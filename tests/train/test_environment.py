"""What a run ran on."""

from __future__ import annotations

import importlib
import json
import sys

import torch

from hybridrec.train import environment
from hybridrec.train.environment import gpu, native


def test_everything_is_json():
    found = environment.environment()
    assert json.loads(json.dumps(found)) == found
    assert found["packages"]["torch"] == torch.__version__
    assert found["threads"]["torch"] == torch.get_num_threads()


def test_a_gpu_that_is_off_has_a_reason(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built for the CPU" in gpu()["why"]
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no device" in gpu()["why"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "triton", None)
        assert "pip install triton" in gpu()["why"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: "H200")
    assert gpu() == {"kernels": "on", "devices": ["H200"]}


def test_a_core_that_does_not_load_is_told_with_its_reason(monkeypatch):
    assert native()["loaded"]

    def broken(name):
        raise ImportError("undefined symbol: x")

    monkeypatch.setattr(importlib, "import_module", broken)
    found = native()
    assert not found["loaded"]
    assert found["why"].startswith("undefined symbol: x; reinstall")
