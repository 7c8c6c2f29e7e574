"""What Prometheus sees: gauges read from durable state at the moment of the scrape, so that a restart resets nothing."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.host import AgentHost

Value = Callable[[AgentRecord, int], float]


class AgentCollector(Collector):
    """Per agent, and per agent and constraint."""

    def __init__(self, host: AgentHost) -> None:
        self._host = host

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        agents = self._host.hosted()
        records = [agent.record for agent in agents if agent.record is not None]
        yield _gauge(
            "episode_index", "Episodes that the agent has started.", ["agent"], [([r.name], r.state.episode) for r in records]
        )
        yield self._per_constraint(
            "dual_variable",
            "Dual variable (lambda) of the next episode.",
            records,
            lambda r, i: float(r.state.dual_variables[i]),
        )
        yield self._per_constraint(
            "episode_cost", "Reported cost of the last completed episode.", records, lambda r, i: r.totals.last_costs[i]
        )
        yield self._per_constraint(
            "cost_budget",
            "Expected cost that an episode must not exceed.",
            records,
            lambda r, i: float(r.definition.spec.cost_budgets[i]),
        )
        yield _gauge(
            "quarantined_agents",
            "Agents whose stored events are damaged; restore them from a backup.",
            [],
            [([], sum(agent.record is None for agent in agents))],
        )
        yield _gauge(
            "recovery_seconds", "Time that reading all agents took at the last start.", [], [([], self._host.recovery_seconds)]
        )

    @staticmethod
    def _per_constraint(name: str, text: str, records: list[AgentRecord], value: Value) -> Metric:
        samples = [
            ([record.name, constraint], value(record, i))
            for record in records
            for i, constraint in enumerate(record.definition.spec.constraint_names)
        ]
        return _gauge(name, text, ["agent", "constraint"], samples)


def registry_of(host: AgentHost) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(AgentCollector(host))
    return registry


def _gauge(name: str, text: str, labels: list[str], samples: list[tuple[list[str], float]]) -> Metric:
    family = GaugeMetricFamily(f"safe_psrl_{name}", text, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
