from __future__ import annotations

from hybridrec.train.checkpoint import host_memory


def test_memory_of_this_machine_is_known():
    found = host_memory.available()
    assert found is None or 0 <= found < 2**50


def test_a_control_group_leaves_what_is_below_its_limit(tmp_path):
    assert host_memory._of_group(tmp_path) is None
    for name, text in (("max", "1000\n"), ("current", "900\n"), ("stat", "anon 400\ninactive_file 300\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert host_memory._of_group(tmp_path) == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory._of_group(tmp_path) is None
