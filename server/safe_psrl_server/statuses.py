"""What an operator is told of an agent."""

import weakref
from collections.abc import Callable, MutableMapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl.methods.bounds import constraint_regret_bound, dual_variable_bound
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agent_record import AgentRecord
from safe_psrl_server.hosted import Hosted


def status_of(agent: Hosted) -> admin_pb2.AgentStatus:
    """Of any agent, damaged ones too."""
    if agent.record is None:
        return admin_pb2.AgentStatus(
            agent=agent.name, condition=admin_pb2.AGENT_CONDITION_QUARANTINED, condition_reason=agent.damage
        )
    return record_status(agent.record)


def record_status(record: AgentRecord, *, with_digest: bool = False) -> admin_pb2.AgentStatus:
    totals, latest = record.totals, record.latest_episode
    status = admin_pb2.AgentStatus(
        agent=record.name,
        condition=admin_pb2.AGENT_CONDITION_PAUSED if record.paused else admin_pb2.AGENT_CONDITION_ACTIVE,
        condition_reason=record.pause_reason,
        version=record.version,
        episode=record.state.episode,
        open_episodes=[episode.number for episode in record.open_episodes],
        completed_episodes=totals.completed_episodes,
        transitions=totals.transitions,
        overridden_actions=totals.overridden_actions,
        cumulative_reward=totals.reward,
        last_reward=totals.last_reward,
        predicted_reward=latest.started.predicted_reward if latest else 0.0,
        visited_ratio=visited_ratio(record),
        constraints=[constraint_status(record, i) for i in range(record.definition.spec.num_constraints)],
        plan_seconds=latest.started.plan_seconds if latest else 0.0,
        created_micros=record.created_micros,
    )
    if with_digest:
        status.state_digest = record.digest()
    return status


def constraint_status(record: AgentRecord, i: int) -> admin_pb2.ConstraintStatus:
    spec, totals, latest = record.definition.spec, record.totals, record.latest_episode
    status = admin_pb2.ConstraintStatus(
        name=spec.constraint_names[i],
        cost_budget=spec.cost_budgets[i],
        satisfiable_cost=spec.satisfiable_costs[i],
        dual_variable=record.state.dual_variables[i],
        last_cost=totals.last_costs[i],
        constraint_regret=totals.constraint_regret[i],
        constraint_regret_max=totals.constraint_regret_max[i],
        violations=totals.violations[i],
    )
    if totals.completed_episodes:
        status.mean_cost = status.cost_budget + status.constraint_regret / totals.completed_episodes
    if record.state.episode:
        status.dual_variable_bound, status.constraint_regret_bound = _derived(record).bounds(record, i)
    if latest is not None:
        started = latest.started
        status.pessimism = started.pessimism[i]
        status.dual_scale = started.dual_scale[i]
        status.cost_price = started.dual_variables[i] / started.dual_scale[i]
        status.predicted_cost = started.predicted_costs[i]
    return status


def visited_ratio(record: AgentRecord) -> float:
    """Share of the available (state, action) pairs that were ever visited."""
    available = record.definition.spec.available_actions
    visited = _derived(record).visited(record)
    return float(np.count_nonzero(visited & available) / np.count_nonzero(available))


class _Derived:
    """What takes long to derive from a record and changes at most once an episode."""

    def __init__(self) -> None:
        self._bounds_at: tuple[CmdpSpec, int] | None = None
        self._bounds: list[tuple[float, float]] = []
        self._counts: Callable[[], object] = lambda: None
        self._visited: NDArray[np.bool_] = np.empty((0, 0), np.bool_)

    def bounds(self, record: AgentRecord, i: int) -> tuple[float, float]:
        """Of the dual variable and of the constraint regret."""
        spec, episode = at = record.definition.spec, record.state.episode
        if self._bounds_at != at:
            self._bounds = [
                (dual_variable_bound(spec, episode, j), constraint_regret_bound(spec, episode, j))
                for j in range(spec.num_constraints)
            ]
            self._bounds_at = at
        return self._bounds[i]

    def visited(self, record: AgentRecord) -> NDArray[np.bool_]:
        """[S, A], without settling what is pending: that copies the counts, which may be large."""
        state = record.state
        if self._counts() is not state.transition_counts:
            self._visited = np.any(state.transition_counts, axis=(0, -1))
            self._counts = weakref.ref(state.transition_counts)
        visited = self._visited.copy()
        for transition in state.pending:
            visited[transition.state, transition.action] = True
        return visited


_DERIVED: Final[MutableMapping[AgentRecord, _Derived]] = weakref.WeakKeyDictionary()


def _derived(record: AgentRecord) -> _Derived:
    return _DERIVED.setdefault(record, _Derived())
