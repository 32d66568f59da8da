"""Cluster: how many devices there are, and how fast they read, talk and answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from math import inf, log2
from typing import Any

GB = 10**9
MOST_DEVICES = 1 << 16  # a plan holds figures of every device
TEXT = re.compile(r"(?P<nodes>[0-9]+)x(?P<devices>[0-9]+)x(?P<kind>.+)")


@dataclass(frozen=True)
class Cluster:
    """`nodes` machines with `devices` each. Bytes, bytes a second and seconds; links are per device and direction.

    >>> Cluster.parse("2x8xH100", memory=60e9)
    Cluster(2x8xH100, 16 devices of 60 GB)
    """

    nodes: int
    devices: int
    kind: str
    memory: float  # of a device
    bandwidth: float  # of a device's memory
    inside: float  # link to the devices of the same node
    between: float  # link to other nodes
    host_memory: float = 0.0  # of a node, for rows that live there; 0: none
    host_bandwidth: float = 0.0  # between a device and its host
    latency_inside: float = 5e-6  # of one hop
    latency_between: float = 10e-6
    touch: float = 0.0  # seconds for an id or row beside its bytes; a GPU has so many at a time that they are for free
    calls: float = 0.0  # seconds of a step beside all that

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "kind":
                continue
            least = 0 if each.name.startswith(("host", "latency", "touch", "calls")) else 1
            whole = each.name in ("nodes", "devices")
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                raise TypeError(f"cluster: {each.name} is {value!r}; it must be a {'whole ' * whole}number")
            if not least <= value < inf:
                raise ValueError(f"cluster: {each.name} is {value!r}; it must be a finite number of at least {least}")
        if self.world > MOST_DEVICES:
            raise ValueError(
                f"cluster: {self.nodes:,} nodes of {self.devices:,} devices are {self.world:,} devices; plans are made "
                f"for {MOST_DEVICES:,} at most: give fewer nodes or devices"
            )
        if self.host_memory and not self.host_bandwidth:
            raise ValueError(
                f"cluster: host_memory is {self.host_memory} and host_bandwidth 0; give both, or neither for no rows "
                "on hosts"
            )

    @staticmethod
    def parse(text: str, **overrides: float) -> Cluster:
        """The cluster that a text such as "16x8xH100" names: nodes x devices of a node x kind."""
        found = TEXT.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"cluster is {text!r}; write NODESxDEVICESxKIND, such as 2x8xH100 or 1x2xcpu")
        kinds = {name.lower(): name for name in KINDS}
        kind = kinds.get(found["kind"].lower())
        if kind is None:
            raise ValueError(f"cluster {text!r}: no kind {found['kind']!r}; there are {', '.join(KINDS)}")
        valid = [each.name for each in fields(Cluster) if each.name not in ("nodes", "devices", "kind")]
        if unknown := [name for name in overrides if name not in valid]:
            raise ValueError(f"a cluster has no {unknown[0]!r} to override; it has {', '.join(valid)}")
        made = Cluster(int(found["nodes"]), int(found["devices"]), kind, **KINDS[kind])
        return replace(made, **overrides)

    @property
    def world(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices

    @property
    def seconds_per_byte(self) -> float:
        """Of a device's traffic that is spread evenly over all others: a part stays in the node, the rest leaves it."""
        near, far = (self.devices - 1) / self.world, (self.world - self.devices) / self.world
        return (near / self.inside + far / self.between) / max(near + far, 1e-30)

    @property
    def reduce_seconds_per_byte(self) -> float:
        """Of a reduction over all devices: the slowest link that it crosses."""
        return 1 / (self.inside if self.nodes == 1 else min(self.inside, self.between))

    @property
    def latency(self) -> float:
        """Of one collective over all devices, however little it carries."""
        hop = self.latency_inside if self.nodes == 1 else self.latency_between
        return hop * log2(self.world) if self.world > 1 else 0.0

    def __repr__(self) -> str:
        return f"Cluster({self.name}, {self.world:,} devices of {self.memory / GB:g} GB)"

    @property
    def name(self) -> str:
        """As `parse` reads it."""
        return f"{self.nodes}x{self.devices}x{self.kind}"


def _gpu(memory: float, bandwidth: float, inside: float, between: float, host_bandwidth: float) -> dict[str, Any]:
    return {
        "memory": memory * GB, "bandwidth": bandwidth * GB, "inside": inside * GB, "between": between * GB,
        "host_memory": 1_000.0 * GB, "host_bandwidth": host_bandwidth * GB,
    }  # fmt: skip


# Data sheets of NVIDIA A100, H100 SXM and H200 SXM: memory, its bandwidth, half of the NVLink total (one direction), a
# network card of 200 or 400 Gb/s for each device as in DGX systems, PCIe 4 or 5 to a host of which 1 TB may hold rows.
KINDS: dict[str, dict[str, Any]] = {
    "A100-40": _gpu(40, 1_555, 300, 25, 32),
    "A100-80": _gpu(80, 2_039, 300, 25, 32),
    "H100": _gpu(80, 3_350, 450, 50, 64),
    "H200": _gpu(141, 4_800, 450, 50, 64),
    # A process with one core, fitted to measured steps (benchmarks/notes/parallel.md): rows that are read and written,
    # messages that are packed and copied, ids that are hashed and rows that are found.
    "cpu": {
        "memory": 64.0 * GB, "bandwidth": 10.0 * GB, "inside": 1.5 * GB, "between": 1.0 * GB,
        "latency_inside": 100e-6, "latency_between": 200e-6, "touch": 6e-9, "calls": 3.5e-3,
    },
}  # fmt: skip
