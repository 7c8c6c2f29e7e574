"""A histogram of plain numbers, which one thread at a time changes: observing costs a few additions, a scrape does the rest."""

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Exemplar, Metric
from prometheus_client.registry import Collector

NAME_LENGTH: Final = 96  # of the 128 characters that an exemplar's labels may have together


class _Latest(NamedTuple):
    """What fell into a bucket last."""

    agent: str
    episode: int
    value: float
    time: float

    @property
    def labels(self) -> Mapping[str, str]:
        return {"agent": self.agent[:NAME_LENGTH], "episode": str(self.episode)}


class PlainHistogram(Collector):
    """Of whatever is observed. Exemplars name agent and episode, where they are told."""

    def __init__(self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = [*map(float, buckets), inf]
        self._within = [0] * len(self._bounds)  # as much as each bucket allows, and more than the one before
        self._latest: list[_Latest | None] = [None] * len(self._bounds)
        self._sum = 0.0
        self._created = time.time()
        registry.register(self)

    def observe(self, value: float, agent: str | None = None, episode: int = 0) -> None:
        bucket = bisect_left(self._bounds, value)
        self._sum += value
        self._within[bucket] += 1
        if agent is not None:
            self._latest[bucket] = _Latest(agent, episode, value, time.time())

    def collect(self) -> Iterator[Metric]:
        family = Metric(self._name, self._text, "histogram")
        counts = list(accumulate(map(float, self._within)))
        for bound, count, latest in zip(self._bounds, counts, self._latest, strict=True):
            exemplar = None if latest is None else Exemplar(dict(latest.labels), latest.value, latest.time)
            family.add_sample(f"{self._name}_bucket", {"le": str(bound).replace("inf", "+Inf")}, count, exemplar=exemplar)
        family.add_sample(f"{self._name}_count", {}, counts[-1])
        family.add_sample(f"{self._name}_sum", {}, self._sum)
        family.add_sample(f"{self._name}_created", {}, self._created)
        yield family
