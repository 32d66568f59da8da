"""What may stand in the sections of a launch, and what is refused."""

from __future__ import annotations

import pytest

from hybridrec.launch.config import LAUNCH_SECTIONS, LaunchConfig
from hybridrec.train.run_config import with_overrides


def test_a_file_without_the_two_sections_starts_one_server_and_one_trainer():
    made = LaunchConfig.of({"data": {"path": ["a.parquet"]}, "out": "runs/a"})
    assert (made.servers.count, made.trainers.count, made.servers.staleness) == (1, 1, 0)
    assert made.run == {"data": {"path": ["a.parquet"]}, "out": "runs/a"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"servers": {"stale": 4}}, "servers has no option 'stale'; valid are count, staleness, path"),
        ({"trainers": {"nproc": 4}}, "trainers has no option 'nproc'; valid are count"),
        ({"servers": {"addresses": ["a:1"]}}, "servers.addresses is of servers that run already"),
        ({"servers": {"count": 0}}, "servers.count is 0; it must be a whole number from 1"),
        ({"servers": {"count": True}}, "servers.count is True"),
        ({"servers": {"staleness": -1}}, "servers.staleness is -1"),
        ({"servers": {"memory": "8GB"}}, "servers.memory is '8GB'; it must be true or false"),
        ({"servers": {"memory": True, "path": "rows"}}, "rows live in one place"),
        ({"servers": {"path": 3}}, "servers.path is 3"),
        ({"servers": {"port": 65535, "count": 2}}, "ports up to 65536; ports end at 65535: take 65534 or less"),
        ({"servers": {"deadline": 0}}, "servers.deadline is 0"),
        ({"servers": {"deadline": float("inf")}}, "servers.deadline is inf"),
        ({"trainers": {"restarts": 1.5}}, "trainers.restarts is 1.5"),
        ({"servers": 3}, r"servers is 3; it must be a section: \[servers\] in TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_the_rule(values: dict, message: str):
    with pytest.raises(ValueError, match=message):
        LaunchConfig.of(values)


def test_settings_of_the_command_line_reach_all_sections():
    words, stated = ["servers.count=3", "train.steps=5", "trainers.count=2"], {"servers": {"count": 1, "staleness": 2}}
    made = LaunchConfig.of(with_overrides(stated, words, LAUNCH_SECTIONS))
    assert (made.servers.count, made.servers.staleness, made.run) == (3, 2, {"train": {"steps": 5}})
    assert made.trainers.count == 2


def test_a_setting_of_no_section_is_an_error():
    with pytest.raises(ValueError, match=r"'server\.count=3' changes nothing known; .* train, servers, trainers"):
        with_overrides({}, ["server.count=3"], LAUNCH_SECTIONS)


def test_a_setting_of_what_is_no_section_is_an_error():
    with pytest.raises(ValueError, match=r"servers is 3, so 'servers.count=2' has no place; make it a section"):
        with_overrides({"servers": 3}, ["servers.count=2"], LAUNCH_SECTIONS)
