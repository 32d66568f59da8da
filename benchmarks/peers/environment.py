"""Environments for peers that cannot live beside us: a venv each, made on first use and kept."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent


class Absent(Exception):
    """A peer that cannot be had, with the reason."""


@dataclass(frozen=True)
class Peer:
    """A program in this folder; `installs`: packages for each call of pip; no `venv`: our own Python."""

    key: str
    program: str
    flags: tuple[str, ...] = ()
    venv: str | None = None
    module: str = ""
    installs: tuple[tuple[str, ...], ...] = ()


PEERS = {
    "torch": Peer("vs_torch_dataloader", "torch_dataloader.py"),
    "torch-batched": Peer("vs_torch_dataloader_batched", "torch_dataloader.py", ("--batched",)),
    "hf": Peer("vs_hf_datasets", "hf_datasets.py", (), "hf", "datasets", (("torch==2.13.0",), ("datasets",))),
    "tfrecord": Peer("vs_tfrecord", "tfrecord.py", (), "tf", "tensorflow", (("tensorflow==2.21.*", "pyarrow"),)),
}


def interpreter(peer: Peer, venvs: Path, install: bool) -> Path:
    """The Python that can run this peer, installing it if need be."""
    if peer.venv is None:
        return Path(sys.executable)
    python = venvs / peer.venv / "bin" / "python"
    if python.exists() and _call([python, "-c", f"import {peer.module}"]) is None:
        return python
    if not install:
        raise Absent(f"{peer.module} is not in {python.parent.parent}, and --no-install was given")
    venv.create(python.parent.parent, with_pip=True, symlinks=True)
    for packages in peer.installs:
        failure = _call([python, "-m", "pip", "install", "--quiet", *packages])
        if failure:
            raise Absent(f"pip install {' '.join(packages)}: {failure}")
    return python


class Conversation:
    """A running peer: `run()` is one pass over its data."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process, self._errors = process, errors
        self.versions: dict[str, str] = self._answer()["ready"]

    def run(self) -> tuple[int, float]:
        """Rows and seconds of one pass."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a dead peer: the missing answer says so
            self._process.stdin.write("pass\n")
            self._process.stdin.flush()
        answer = self._answer()
        return answer["rows"], answer["seconds"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        status = self._process.wait()
        self._errors.seek(0)
        raise Absent(f"it ended with status {status}: {_last_line(self._errors.read())}")


@contextmanager
def talk(peer: Peer, python: Path, path: Path, cache: Path, settings: tuple[int, int, str]) -> Iterator[Conversation]:
    """Start a peer over a file; `settings` are batch size, threads and label."""
    command = [python, HERE / peer.program, path, cache, *settings, *peer.flags]
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen([str(part) for part in command], stdin=pipe, stdout=pipe, stderr=errors, text=True)
        try:
            yield Conversation(process, errors)
        finally:
            _end(process)


def _call(command: list[Any]) -> str | None:
    """None if the command succeeds, else the end of what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return _last_line(done.stderr or done.stdout)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _end(process: subprocess.Popen[str]) -> None:
    """Let the peer finish (its stdin ends), or stop it."""
    with suppress(BrokenPipeError):
        assert process.stdin is not None
        process.stdin.close()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
