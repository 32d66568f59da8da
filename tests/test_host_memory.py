from __future__ import annotations

from pathlib import Path

import pytest

from hybridrec import host_memory

SECOND = ("0::/box/job", "", {"max": "1000", "current": "900", "stat": "anon 400\ninactive_file 300\n"})
FIRST = (
    "7:cpu,memory:/box/job",
    "memory",
    {"limit_in_bytes": "1000", "usage_in_bytes": "900", "stat": "total_inactive_file 300\ninactive_file 1\n"},
)


def machine(folder: Path, line: str) -> tuple[Path, Path]:
    """A machine with 2,000,000 bytes, and this process in the groups of the line."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 2000 kB\n")
    (folder / "proc/self/cgroup").write_text(f"{line}\n")
    return folder / "proc", folder / "groups"


def limited(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(text)


def test_memory_of_this_machine_is_known():
    found = host_memory.available()
    assert found is None or 0 <= found < 2**50


@pytest.mark.parametrize(("line", "kind", "files"), [SECOND, FIRST], ids=["second version", "first version"])
@pytest.mark.parametrize("group", ["box/job", "box", ""])
def test_a_control_group_and_those_it_is_in_leave_what_is_below_their_limits(tmp_path, line, kind, files, group):
    proc, groups = machine(tmp_path, line)
    assert host_memory.available(proc, groups) == 2000 * 1024
    limited(groups / kind / group, files)
    assert host_memory.available(proc, groups) == 400


def test_a_group_without_a_limit_leaves_all_of_the_machine(tmp_path):
    proc, groups = machine(tmp_path, SECOND[0])
    limited(groups / "box/job", SECOND[2] | {"max": "max\n"})
    assert host_memory.available(proc, groups) == 2000 * 1024


def test_nothing_is_known_of_a_machine_that_tells_nothing(tmp_path):
    assert host_memory.available(tmp_path, tmp_path) is None
