"""What a scrape gets: the agents' gauges, the server's, and what the process counted, in the format that was asked for."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from itertools import chain
from typing import Final, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from safe_psrl_server.host import AgentHost
from safe_psrl_server.metrics.agents import AgentSeries, Census
from safe_psrl_server.metrics.meter import PREFIX
from safe_psrl_server.store import EventStore

SCRAPE_SECONDS: Final = 30.0
HAND_OVER_SECONDS: Final = 0.00005
END: Final = b"# EOF\n"  # of OpenMetrics; the older format has no end

Piece = TypeVar("Piece")


class MetricsPage:
    """Asked from any thread but the loop's."""

    def __init__(self, host: AgentHost, store: EventStore, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._store = store
        self._loop = loop
        self._series = AgentSeries(host, host.limits.max_agents_in_metrics)

    def render(self, accept: str) -> tuple[str, bytes]:
        """Content type and body. Raises TimeoutError if the loop does not answer, CancelledError if it has ended."""
        encode, content_type = _encoder(accept)
        if self._loop.is_closed():
            raise CancelledError
        census = asyncio.run_coroutine_threadsafe(self._series.census(), self._loop).result(SCRAPE_SECONDS)
        is_open = content_type.startswith("application/openmetrics-text")
        body = encode(_Given(_unhurried(chain(self._server_wide(census), self._counted()))))
        agents = b"".join(_unhurried(census.text()))
        return content_type, body.removesuffix(END) + agents + END if is_open else body + agents

    def _server_wide(self, census: Census) -> Iterator[Metric]:
        yield _gauge("agents", "Agents that exist, quarantined ones too. The limit is limits.max_agents.", census.agents)
        yield _gauge(
            "quarantined_agents",
            "Agents whose stored events are damaged. Above 0: restore them from a backup; the log says what is damaged.",
            census.quarantined,
        )
        yield _gauge(
            "agents_without_series",
            "Agents that have no series here. Above 0: raise limits.max_agents_in_metrics, or delete agents.",
            census.without_series,
        )
        yield _gauge(
            "recovery_seconds",
            "Time that reading all agents took at the last start. Rising means more agents, or snapshots that fail.",
            self._host.recovery_seconds,
        )
        usage = self._store.usage()
        if usage is not None:
            yield _gauge("store_bytes", "Size of the database's files.", usage.used_bytes)
            yield _gauge(
                "store_free_bytes",
                "Space left where the data directory is. The server stops when a commit fails: make room before it is 0.",
                usage.free_bytes,
            )

    def _counted(self) -> Iterator[Metric]:
        """Without the times of creation, which nobody asks for and which double the number of series."""
        for metric in self._host.meter.registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """What `accept` asks for; the usual format if it asks for a version that is none."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        return choose_encoder("")


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _unhurried(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Let calls have the interpreter after each piece. A thread that only calculates would keep it for milliseconds."""
    for piece in pieces:
        yield piece
        time.sleep(HAND_OVER_SECONDS)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
