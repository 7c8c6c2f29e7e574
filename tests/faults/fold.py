"""The expected state of an agent: a fold of the acknowledged calls in plain Python."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.faults.history import OK, UNKNOWN, Entry, brief

Key = tuple[int, int]  # episode, step


@dataclass
class Attempts:
    """All attempts to report one step."""

    transition: Any
    begin: float  # of the first
    end: float = float("inf")  # of the first that was acknowledged
    fresh: int = 0  # acknowledged as new
    repeated: int = 0  # acknowledged as known already
    unknown: int = 0  # began before the first acknowledgement, with an unknown outcome


@dataclass
class Expected:
    """One agent."""

    agent: str
    spec: Any
    steps: dict[Key, Attempts] = field(default_factory=dict)
    starts: dict[int, Any] = field(default_factory=dict)  # by episode: the first acknowledged reply
    ended: set[int] = field(default_factory=set)  # broken off
    actions: dict[tuple[int, int, int], int] = field(default_factory=dict)  # by episode, step, state
    updates: int = 0  # that changed the budget
    budgets: dict[int, float] = field(default_factory=dict)  # by episode, of the first constraint, where it is not the spec's
    findings: list[str] = field(default_factory=list)
    _budget: float | None = None  # as last acknowledged

    def update(self, budget: float) -> None:
        """The client waits for it before it begins the next episode."""
        known = self.spec.cmdp.constraints[0].cost_budget if self._budget is None else self._budget
        self.updates += budget != known
        self._budget = budget

    def begun(self, episode: int) -> None:
        if self._budget is not None:
            self.budgets.setdefault(episode, self._budget)

    def budget(self, episode: int, constraint: int) -> float:
        """What an episode was planned with."""
        given: float = self.spec.cmdp.constraints[constraint].cost_budget
        return self.budgets.get(episode, given) if constraint == 0 else given

    @property
    def acknowledged(self) -> dict[Key, Any]:
        """The transitions, in the order in which they happened."""
        return {key: self.steps[key].transition for key in sorted(self.steps) if self.steps[key].end < float("inf")}

    def counts(self) -> NDArray[np.int64]:
        """[1, S, A, S]."""
        problem = self.spec.cmdp
        counts = np.zeros((1, problem.num_states, problem.num_actions, problem.num_states), np.int64)
        for seen in self.acknowledged.values():
            counts[0, seen.state, seen.action, seen.next_state] += 1
        return counts

    def episodes(self) -> dict[int, list[Any]]:
        """The acknowledged transitions of each episode."""
        episodes: dict[int, list[Any]] = {number: [] for number in sorted(self.starts)}
        for (episode, _), seen in self.acknowledged.items():
            episodes.setdefault(episode, []).append(seen)
        return episodes

    def completed(self) -> dict[int, list[Any]]:
        return {number: steps for number, steps in self.episodes().items() if len(steps) == self.spec.cmdp.horizon}


def folded(entries: Sequence[Entry]) -> dict[str, Expected]:
    """All agents of a history. What contradicts itself in it becomes a finding of its agent."""
    agents: dict[str, Expected] = {}
    keys: dict[str, dict[str, int]] = defaultdict(dict)
    for entry in entries:
        if entry.call == "CreateAgent" and entry.outcome == OK:
            agents.setdefault(entry.request.agent, Expected(entry.request.agent, entry.request.spec))
    for entry in entries:
        if entry.request.agent in agents:
            _enter(agents[entry.request.agent], entry, keys[entry.request.agent])
    return agents


def _enter(agent: Expected, entry: Entry, keys: dict[str, int]) -> None:  # noqa: C901  # one branch for each call
    if entry.expected != "OK":
        if entry.outcome == OK:
            agent.findings.append(f"{entry.call} was accepted and should have been {entry.expected}: {brief(entry.request)}")
        return
    if entry.outcome not in {OK, UNKNOWN}:
        agent.findings.append(f"{entry.call} was refused with {entry.code}: {brief(entry.request)}")
        return
    if entry.call == "StartEpisode":
        _enter_start(agent, entry, keys)
    elif entry.call == "GetAction" and entry.outcome == OK:
        agent.starts.setdefault(entry.reply.episode, entry.reply)
        _enter_action(agent, entry.reply.episode, entry.reply.step, entry.request.state, entry.reply.action)
    elif entry.call in {"ReportTransition", "Step"}:
        _enter_step(agent, entry)
    elif entry.call == "ReportEpisode":
        known = entry.reply.duplicates if entry.reply is not None else 0
        for step, transition in enumerate(entry.request.transitions):
            _enter_report(agent, entry, (entry.request.episode, step), transition, duplicate=step < known)
    elif entry.call == "UpdateAgent" and entry.outcome == OK:
        agent.update(entry.request.update.cmdp.constraints[0].cost_budget)
    elif entry.call == "EndEpisode" and entry.outcome == OK:
        agent.ended.add(entry.request.episode)


def _enter_start(agent: Expected, entry: Entry, keys: dict[str, int]) -> None:
    if entry.outcome != OK:
        return
    number, reply = entry.reply.episode, entry.reply
    agent.begun(number)
    if keys.setdefault(entry.request.request_id, number) != number:
        agent.findings.append(f"key {entry.request.request_id} began episodes {keys[entry.request.request_id]} and {number}")
    if agent.starts.setdefault(number, reply) != reply:
        agent.findings.append(f"the start of episode {number} was answered in two ways")
    _enter_action(agent, number, 0, entry.request.state, reply.action)
    policy = reply.policy
    for place, action in enumerate(policy.actions):
        _enter_action(agent, number, place // policy.num_states, place % policy.num_states, action)


def _enter_step(agent: Expected, entry: Entry) -> None:
    request, reply = entry.request, entry.reply
    key = request.episode, request.step
    _enter_report(agent, entry, key, request.transition, duplicate=reply is not None and reply.duplicate)
    if reply is None:
        return
    if (reply.episode, reply.step) != key:
        agent.findings.append(f"step {key} was entered as {(reply.episode, reply.step)}")
    if reply.episode_done != (request.step == agent.spec.cmdp.horizon - 1) and request.episode not in agent.ended:
        agent.findings.append(f"after step {key} the episode was reported as {'over' if reply.episode_done else 'open'}")
    if entry.call == "Step" and reply.HasField("action"):
        _enter_action(agent, request.episode, request.step + 1, request.transition.next_state, reply.action)


def _enter_report(agent: Expected, entry: Entry, key: Key, transition: Any, *, duplicate: bool) -> None:
    known = agent.steps.setdefault(key, Attempts(transition, entry.begin))
    known.begin = min(known.begin, entry.begin)
    if entry.outcome == UNKNOWN:
        known.unknown += 1
        return
    if known.transition != transition:
        agent.findings.append(f"step {key} was acknowledged with two contents")
    known.end = min(known.end, entry.end)
    known.repeated += duplicate
    known.fresh += not duplicate


def _enter_action(agent: Expected, episode: int, step: int, state: int, action: int) -> None:
    told = agent.actions.setdefault((episode, step, state), action)
    if told != action:
        agent.findings.append(f"in state {state} at step {step} of episode {episode} the action was {told}, then {action}")
