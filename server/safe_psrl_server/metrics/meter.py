"""What this process did since it started: counters and histograms, in a registry of their own."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Info

from safe_psrl.version import __version__
from safe_psrl_server.metrics.counter import PlainCounter
from safe_psrl_server.metrics.histogram import NAME_LENGTH, PlainHistogram

PREFIX: Final = "safe_psrl"
PLAN_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
COMMIT_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SIZE_BUCKETS: Final = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)


class Meter:
    """Told by those who do; asked by a scrape. Any thread may call, unless it says otherwise."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Info(f"{PREFIX}_build", "The release that runs.", registry=self.registry).info({"version": __version__})
        self._transitions = self._plain_counter(
            "transitions", "Transitions learned by this process. A rate of 0 while clients play means that reports are refused."
        )
        self._duplicates = self._counter(
            "duplicates",
            "Transitions reported again and recognised. Rising fast means that replies are lost: look at the network and at "
            "clients' deadlines.",
        )
        self._rejections = Counter(
            "rejections",
            "Calls and stream messages refused, by the reason that the client was given. Rising means a client that is wrong "
            "or a limit that is reached: the debug log names agent and field.",
            ["reason"],
            namespace=PREFIX,
            registry=self.registry,
        )
        self._plans = self._plain_counter("plans", "Plans made, one for each episode that began.")
        self._infeasible = self._counter(
            "plans_infeasible",
            "Plans for which no drawn kernel could keep the satisfiable cost. Rising means that the specification's "
            "satisfiable_cost contradicts what is seen: correct it.",
        )
        self._fallback_actions = self._counter(
            "fallback_actions", "Actions of a fallback policy. Rising means that a paused agent is being played: resume it."
        )
        self._plan_seconds = self._histogram(
            "plan_duration_seconds",
            "Time to sample and plan an episode. Rising means larger problems or a busy machine: see limits.planning_threads. "
            "Exemplars name agent and episode.",
            PLAN_BUCKETS,
        )
        self._commit_seconds = self._histogram(
            "store_commit_seconds", "Time of one commit, on the disk when done. Rising means a slow disk.", COMMIT_BUCKETS
        )
        self._commit_events = self._histogram(
            "store_commit_events",
            "Events in one commit. Rising with store_commit_seconds means load near the limit.",
            BATCH_BUCKETS,
        )
        self._snapshot_bytes = self._histogram(
            "snapshot_bytes",
            "Size of snapshots as they are stored. Large ones make stopping and recovering slow.",
            SIZE_BUCKETS,
        )

    def learned(self, transitions: int) -> None:
        """They are durable. On the loop."""
        self._transitions.count += transitions

    def recognised(self, duplicates: int) -> None:
        if duplicates:
            self._duplicates.inc(duplicates)

    def refused(self, reason: str, agent: str) -> None:
        self._rejections.labels(reason).inc(exemplar={"agent": agent[:NAME_LENGTH]} if agent else None)

    def planned(self, agent: str, episode: int, seconds: float, *, satisfiable: bool) -> None:
        """On the loop."""
        self._plans.count += 1
        if not satisfiable:
            self._infeasible.inc()
        self._plan_seconds.observe(seconds, agent, episode)

    def acted(self, *, fallback: bool) -> None:
        if fallback:
            self._fallback_actions.inc()

    def committed(self, seconds: float, events: int) -> None:
        """Of a group; one of snapshots alone has no events. On the loop."""
        self._commit_seconds.observe(seconds)
        if events:
            self._commit_events.observe(events)

    def snapshot_stored(self, size: int) -> None:
        self._snapshot_bytes.observe(size)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, namespace=PREFIX, registry=self.registry)

    def _plain_counter(self, name: str, text: str) -> PlainCounter:
        return PlainCounter(f"{PREFIX}_{name}", text, self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> PlainHistogram:
        return PlainHistogram(f"{PREFIX}_{name}", text, buckets, self.registry)
