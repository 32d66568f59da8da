"""What tests of benchmarks share: they are scripts beside each other and no package, asked on a command line."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest) -> Iterator[dict[str, ModuleType]]:
    """The parts of a benchmark, those which `MODULES` of the test names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield {name: importlib.import_module(name) for name in request.module.MODULES}


@pytest.fixture(scope="session")
def ask() -> Callable[..., dict[str, Any]]:
    """Gives the answer of a benchmark, which is its last line."""

    def answer(name: str, *options: object) -> dict[str, Any]:
        command = [sys.executable, BENCHMARKS / f"{name}.py", "--json", *options]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return answer


@pytest.fixture
def drawn(tmp_path: Path) -> Callable[[str, dict[str, Any]], str]:
    """Gives the picture of an answer, as a program draws it."""
    pytest.importorskip("matplotlib")

    def picture(program: str, answer: dict[str, Any]) -> str:
        source, target = tmp_path / "answer.json", tmp_path / "picture.svg"
        source.write_text(json.dumps(answer))
        subprocess.run([sys.executable, str(BENCHMARKS / f"{program}.py"), str(source), str(target)], check=True)
        return target.read_text()

    return picture


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Gives what a benchmark says of options that it does not take."""

    def said(benchmark: ModuleType, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{benchmark.__name__}.py", *options])
        with pytest.raises(SystemExit) as ended:
            benchmark.main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return said


@pytest.fixture
def fbgemm_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For processes that are started: something in the place of FBGEMM, and layers that are not compiled."""
    package = tmp_path / "fbgemm_gpu"
    package.mkdir()
    names = ("split_embedding_configs", "split_table_batched_embeddings_ops_common")
    for name in ("__init__", *names, "split_table_batched_embeddings_ops_training"):
        (package / f"{name}.py").write_text((Path(__file__).parent / "fbgemm_stub.py").read_text())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    return package
