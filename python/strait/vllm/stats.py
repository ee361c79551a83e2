"""What vLLM logs and exports of this connector's transfers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

_LISTS = ("seconds", "bytes", "blocks")  # of loads that were DONE, in their order
_COUNTS = ("failed_loads", "failed_sends", "sends", "declined")


@dataclass
class StraitStats(KVConnectorStats):
    """Loads and sends of an interval."""

    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {**{name: [] for name in _LISTS}, **dict.fromkeys(_COUNTS, 0)}

    def loaded(self, seconds: float, size: int, blocks: int) -> None:
        for name, value in zip(_LISTS, (seconds, size, blocks)):
            self.data[name].append(value)

    def count(self, name: str) -> None:
        self.data[name] += 1

    def take(self) -> StraitStats:
        taken = StraitStats(data=self.data)
        self.reset()
        return taken

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name in (*_LISTS, *_COUNTS):
            self.data[name] = self.data[name] + other.data[name]
        return self

    def reduce(self) -> dict[str, int | float]:
        times = sorted(self.data["seconds"])
        size = sum(self.data["bytes"])
        figures: dict[str, int | float] = {"loads": len(times), **{name: self.data[name] for name in _COUNTS}}
        if times:
            figures["load p50 (ms)"] = round(1e3 * times[len(times) // 2], 2)
            figures["load p99 (ms)"] = round(1e3 * times[min(len(times) - 1, len(times) * 99 // 100)], 2)
            figures["MB per load"] = round(size / len(times) / 1e6, 2)
            figures["MB/s"] = round(size / max(sum(times), 1e-9) / 1e6, 1)
        return figures

    def is_empty(self) -> bool:
        return not self.data["seconds"] and not any(self.data[name] for name in _COUNTS)


#: Name, kind, help; a histogram observes the list of the same name.
_HISTOGRAMS = {
    "seconds": (
        "vllm:strait_load_seconds",
        "Time from the request of a load to its blocks being in place.",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    ),
    "bytes": ("vllm:strait_load_bytes", "Bytes of the blocks of a load.", tuple(4.0**n for n in range(7, 17))),
}
_COUNTERS = {
    "sends": ("vllm:strait_sends", "Requests whose blocks were taken by another engine."),
    "failed_loads": ("vllm:strait_failed_loads", "Loads that failed: their tokens are computed here."),
    "failed_sends": ("vllm:strait_failed_sends", "Requests whose blocks nobody took, or not all of them."),
    "declined": ("vllm:strait_declined", "Requests at other engines of which nothing had to be loaded."),
}


class StraitPromMetrics(KVConnectorPromMetrics):
    """The same as Prometheus metrics, by engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._by_name: dict[str, Any] = {}
        histogram, counter = cast(Any, self._histogram_cls), cast(Any, self._counter_cls)
        for name, (metric, text, buckets) in _HISTOGRAMS.items():
            made = histogram(name=metric, documentation=text, buckets=buckets, labelnames=labelnames)
            self._by_name[name] = create_metric_per_engine(made, per_engine_labelvalues)
        for name, (metric, text) in _COUNTERS.items():
            made = counter(name=metric, documentation=text, labelnames=labelnames)
            self._by_name[name] = create_metric_per_engine(made, per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name in _HISTOGRAMS:
            for value in transfer_stats_data[name]:
                self._by_name[name][engine_idx].observe(value)
        for name in _COUNTERS:
            self._by_name[name][engine_idx].inc(transfer_stats_data[name])
