"""Metrics of a server for Prometheus, read from its figures when they are asked for; needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hybridrec.server.shard import Shard

COUNTERS = {
    "lookups": "Lookups that were asked for.",
    "pushes": "Pushes of gradients that came.",
    "ids_looked_up": "Ids in lookups.",
    "ids_pushed": "Ids in pushes.",
    "refused": "Requests that were answered with an error.",
    "seconds": "Seconds at work on requests.",
}
GAUGES = {
    "waiting": "Requests that wait for their turn.",
    "session": "The session that is served.",
    "memory": "Bytes of memory of the process.",
}
TABLE_COUNTERS = ("hits", "misses", "inserted", "refused", "evicted", "expired", "dropped_gradients", "nan_rows")
TABLE_GAUGES = ("rows", "capacity", "bytes")


class ShardCollector:
    """What prometheus-client asks for the metrics of a shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def collect(self) -> Iterator[Any]:
        """All metrics as they are now."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._shard.stats()
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"hybridrec_server_{name}", text, value=found[name])
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(f"hybridrec_server_{name}", text, value=found[name])
        seen = CounterMetricFamily(
            "hybridrec_server_lookups_by_staleness", "Lookups by unseen pushes.", labels=["unseen"]
        )
        for unseen, count in enumerate(found["staleness"]):
            seen.add_metric([str(unseen)], count)
        yield seen
        for family, names in ((CounterMetricFamily, TABLE_COUNTERS), (GaugeMetricFamily, TABLE_GAUGES)):
            for name in names:
                metric = family(f"hybridrec_table_{name}", f"{name} of a table on this server", labels=["table"])
                for table, values in found["tables"].items():
                    metric.add_metric([table], values[name])
                yield metric


def serve_metrics(shard: Shard, host: str, port: int) -> int:
    """Answer Prometheus at http://host:port/metrics from a thread of its own; the port, which 0 leaves open."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ValueError("metrics need prometheus-client; install it with pip install 'hybridrec[servers]'") from None
    registry = CollectorRegistry()
    registry.register(ShardCollector(shard))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise ValueError(
            f"metrics cannot be had at {host}:{port}: {error.strerror}; give another --metrics-port"
        ) from None
    return server.server_port
