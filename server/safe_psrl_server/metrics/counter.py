"""A counter that is a plain number, which only the loop changes: counting costs an addition, a scrape does the rest."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class PlainCounter(Collector):
    """Of whatever is done often."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self.count = 0
        self._name = name
        self._text = text
        self._created = time.time()
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text)
        family.add_metric((), self.count, created=self._created)
        yield family
