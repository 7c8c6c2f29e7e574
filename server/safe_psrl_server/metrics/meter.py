"""Counters and histograms of what this process has done since it started."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, Info
from prometheus_client.core import Metric

from safe_psrl.version import __version__
from safe_psrl_server.config import ConfigError

PREFIX: Final = "safe_psrl"
COLLECTOR: Final = re.compile(r"https?://([^/:]+|\[[^]]+\]):\d+/?")
NAME_LENGTH: Final = 96  # of the 128 characters that an exemplar's labels may have together
PLAN_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
COMMIT_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
LOAD_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SIZE_BUCKETS: Final = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)


class Registry(CollectorRegistry):
    """Without the `_created` samples, which nothing here uses and which double the number of series."""

    def collect(self) -> Iterable[Metric]:
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Meter:
    """May be called from any thread."""

    def __init__(self) -> None:
        self.registry = Registry()
        Info(f"{PREFIX}_build", "The version that runs.", registry=self.registry).info({"version": __version__})
        self._transitions = self._counter(
            "transitions",
            "Transitions learned by this process. A rate of 0 while clients play means that reports are rejected.",
        )
        self._duplicates = self._counter(
            "duplicates",
            "Transitions that were reported again. Rising fast means that replies are lost: check the network and the "
            "clients' deadlines.",
        )
        self._rejections = self._counter(
            "rejections",
            "Calls and stream messages rejected, by reason. Rising means a faulty client or a limit that is reached: the debug "
            "log has agent and field.",
            ["reason"],
        )
        self._plans = self._counter("plans", "Plans computed, one for each episode started.")
        self._infeasible = self._counter(
            "plans_infeasible",
            "Plans for which no sampled kernel satisfies the satisfiable cost. Rising means that the specification's "
            "satisfiable_cost contradicts the observations: correct it.",
        )
        self._fallback_actions = self._counter(
            "fallback_actions",
            "Actions taken from a fallback policy. Rising means that clients play a paused agent: resume it.",
        )
        self._plan_seconds = self._histogram(
            "plan_duration_seconds",
            "Time to sample and plan an episode. Rising means larger problems or a busy machine: see limits.planning_threads. "
            "Exemplars have agent and episode.",
            PLAN_BUCKETS,
        )
        self._commit_seconds = self._histogram(
            "store_commit_seconds",
            "Duration of a commit, until it is durable. Rising means a slow disk or database.",
            COMMIT_BUCKETS,
        )
        self._commit_events = self._histogram(
            "store_commit_events",
            "Events in one commit. Rising with store_commit_seconds means load near the limit.",
            BATCH_BUCKETS,
        )
        self._snapshot_bytes = self._histogram(
            "snapshot_bytes", "Size of stored snapshots. Large ones make stopping and recovering slow.", SIZE_BUCKETS
        )

        self._load_seconds = self._histogram(
            "agent_load_seconds",
            "Time to load an agent that was not in memory. Rising means many events after snapshots, or a slow disk.",
            LOAD_BUCKETS,
        )

    def interceptors(self) -> "Sequence[grpc.aio.ServerInterceptor]":
        """Of the gRPC server."""
        return ()

    def close(self) -> None:
        """Called when the server has stopped."""

    def agent_loaded(self, seconds: float) -> None:
        self._load_seconds.observe(seconds)

    def learned(self, transitions: int) -> None:
        """Called once they are durable."""
        self._transitions.inc(transitions)

    def repeated(self, duplicates: int) -> None:
        if duplicates:
            self._duplicates.inc(duplicates)

    def rejected(self, reason: str, agent: str) -> None:
        self._rejections.labels(reason).inc(exemplar={"agent": agent[:NAME_LENGTH]} if agent else None)

    def planned(self, agent: str, episode: int, seconds: float, *, satisfiable: bool) -> None:
        self._plans.inc()
        if not satisfiable:
            self._infeasible.inc()
        self._plan_seconds.observe(seconds, {"agent": agent[:NAME_LENGTH], "episode": str(episode)})

    def acted(self, *, fallback: bool) -> None:
        if fallback:
            self._fallback_actions.inc()

    def committed(self, seconds: float, events: int) -> None:
        """A commit that only holds snapshots has no events."""
        self._commit_seconds.observe(seconds)
        if events:
            self._commit_events.observe(events)

    def snapshot_stored(self, size: int) -> None:
        self._snapshot_bytes.observe(size)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, namespace=PREFIX, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, text, namespace=PREFIX, registry=self.registry, buckets=buckets)


def open_meter(collector: str) -> Meter:
    """A meter; with the address of an OpenTelemetry collector, one that also sends traces. Raises `ConfigError`."""
    if not collector:
        return Meter()
    if not COLLECTOR.fullmatch(collector):
        raise ConfigError(f"otlp: {collector!r} must be http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4317")
    try:
        from safe_psrl_server.metrics.traces import TracedMeter  # noqa: PLC0415  # needs an extra
    except ImportError:
        raise ConfigError("otlp: traces need OpenTelemetry: pip install 'safe-psrl[otlp]'") from None
    return TracedMeter(collector)
