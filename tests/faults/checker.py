"""The judge. Knows the history and what the service says of itself by its calls and metrics; nothing of how it works.

Exactly once, one action for a key, no gap, versions that only rise, a posterior that is the fold of what was acknowledged,
gauges that are what the fold gives, and decisions that are those of the algorithm alone when it is told the same.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from safe_psrl_proto.v1 import admin_pb2
from tests.faults.fold import Expected, folded
from tests.faults.history import OK, UNKNOWN, Entry
from tests.faults.replay import replayed

TOLERANCE = 1e-9  # of sums of floating-point numbers
Gauges = Mapping[tuple[str, str, str], float]  # by name, agent, constraint


@dataclass
class View:
    """What the service says of an agent."""

    status: Any
    counts: NDArray[np.int64]
    verified: Any
    gauges: Gauges


@dataclass
class Verdict:
    """What came out. `findings` is empty if all is well."""

    acknowledged: int = 0
    unknown: int = 0
    repeated: int = 0  # acknowledged, and known already
    lost: int = 0
    duplicated: int = 0
    findings: list[str] = field(default_factory=list)


def look(admin: Any, agent: str, metrics: str, seconds: float = 30.0) -> View:
    """Ask a service that is at rest. `metrics` is its page."""
    posterior = admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent=agent), timeout=seconds).transition_counts
    counts = np.frombuffer(zlib.decompress(posterior.data), posterior.dtype).reshape(tuple(posterior.shape))
    return View(
        admin.GetAgent(admin_pb2.GetAgentRequest(agent=agent), timeout=seconds).status,
        counts.astype(np.int64),
        admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent=agent), timeout=seconds),
        gauges_of(metrics),
    )


def gauges_of(metrics: str) -> Gauges:
    return {
        (sample.name.removeprefix("safe_psrl_"), sample.labels["agent"], sample.labels.get("constraint", "")): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if "agent" in sample.labels
    }


def judge(entries: Sequence[Entry], views: Mapping[str, View], *, repeats_by_network: bool = False) -> Verdict:
    """The whole history against what the service says of each agent of it."""
    verdict = Verdict(
        acknowledged=sum(entry.outcome == OK for entry in entries), unknown=sum(entry.outcome == UNKNOWN for entry in entries)
    )
    for name, agent in folded(entries).items():
        findings = [
            *agent.findings,
            *_exactly_once(agent, repeats_by_network),
            *_without_gaps(agent),
            *_moving_on(agent, [entry for entry in entries if entry.call == "GetAgent" and entry.request.agent == name]),
            *replayed(agent),
        ]
        verdict.repeated += sum(step.repeated for step in agent.steps.values())
        view = views.get(name)
        if view is None:
            findings.append("the service does not tell of it any more")
        else:
            difference = agent.counts() - view.counts
            verdict.lost += int(difference.clip(min=0).sum())
            verdict.duplicated += int((-difference).clip(min=0).sum())
            findings += _as_folded(agent, view)
        verdict.findings += [f"{name}: {finding}" for finding in findings]
    return verdict


def _exactly_once(agent: Expected, repeats_by_network: bool) -> Iterator[str]:
    for key, step in agent.steps.items():
        if step.fresh > 1:
            yield f"step {key} was entered {step.fresh} times"
        if step.repeated and not step.fresh and not step.unknown and not repeats_by_network:
            yield f"step {key} was called a repetition and never sent before"


def _without_gaps(agent: Expected) -> Iterator[str]:
    numbers = sorted(agent.starts)
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"the episodes are {numbers}"
    steps: dict[int, list[int]] = {}
    for episode, step in agent.acknowledged:
        steps.setdefault(episode, []).append(step)
    for episode, found in steps.items():
        if found != list(range(len(found))):
            yield f"the steps of episode {episode} are {found}"
        if episode not in agent.starts:
            yield f"episode {episode} has steps and was never begun"


def _moving_on(agent: Expected, looks: Sequence[Entry]) -> Iterator[str]:
    """Looks that came one after the other see versions that do not fall, and all that was acknowledged before."""
    digests: dict[int, str] = {}
    floor, waiting = 0, sorted((look for look in looks if look.outcome == OK), key=lambda look: look.end)
    seen_before = iter(waiting)
    before = next(seen_before, None)
    ends = np.sort([step.end for step in agent.steps.values()])
    begins = np.sort([step.begin for step in agent.steps.values()])
    for look in sorted(waiting, key=lambda look: look.begin):
        while before is not None and before.end < look.begin:
            floor, before = max(floor, before.reply.status.version), next(seen_before, None)
        status = look.reply.status
        if status.version < floor:
            yield f"version {status.version} was seen after {floor}"
        if digests.setdefault(status.version, status.state_digest) != status.state_digest:
            yield f"version {status.version} was seen with two states"
        least, most = np.searchsorted(ends, look.begin), np.searchsorted(begins, look.end)
        if not least <= status.transitions <= most:
            yield f"{status.transitions} transitions were seen when from {least} to {most} were possible"


def _as_folded(agent: Expected, view: View) -> Iterator[str]:
    """The state at rest, as the calls and as the metrics give it."""
    status, counts = view.status, agent.counts()
    if not np.array_equal(view.counts, counts):
        yield f"the posterior has {view.counts.sum()} transitions; {counts.sum()} were acknowledged, or in other places"
    if not view.verified.ok or view.verified.state_digest != status.state_digest:
        yield f"what is stored is not what is served: {view.verified.difference}"
    for what, wanted in _sums(agent).items():
        gauge = GAUGES[what]
        for name, found in ((what, getattr(status, what)), (f"the gauge {gauge}", view.gauges[gauge, agent.agent, ""])):
            if not np.isclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE):
                yield f"{name} is {found}, not {wanted}"
    for i, (shown, constraint) in enumerate(zip(status.constraints, agent.spec.cmdp.constraints, strict=True)):
        for what, wanted in _constraint_sums(agent, i).items():
            measured = view.gauges[CONSTRAINT_GAUGES[what], agent.agent, constraint.name]
            for found in (getattr(shown, what), measured):
                if not np.isclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE):
                    yield f"{what} of {constraint.name} is {found}, not {wanted}"


GAUGES = {
    "episode": "episode_index",
    "completed_episodes": "completed_episodes",
    "transitions": "observed_transitions",
    "overridden_actions": "overridden_actions",
    "cumulative_reward": "cumulative_reward",
    "last_reward": "episode_reward",
    "visited_ratio": "posterior_visited_ratio",
    "definition_version": "definition_version",
}
CONSTRAINT_GAUGES = {
    "last_cost": "episode_cost",
    "mean_cost": "episode_cost_mean",
    "constraint_regret": "constraint_regret",
    "constraint_regret_max": "constraint_regret_max",
    "violations": "constraint_violations",
    "dual_variable": "dual_variable",
}


def _sums(agent: Expected) -> dict[str, float]:
    counts, completed = agent.counts(), agent.completed()
    rewards = [sum(seen.reward for seen in steps) for steps in completed.values()]
    overridden = sum(
        agent.actions.get((episode, step, seen.state), seen.action) != seen.action
        for (episode, step), seen in agent.acknowledged.items()
    )
    return {
        "episode": len(agent.starts),
        "completed_episodes": len(completed),
        "transitions": int(counts.sum()),
        "overridden_actions": overridden,
        "cumulative_reward": sum(rewards),
        "last_reward": rewards[-1] if rewards else 0.0,
        "visited_ratio": float((counts.sum(axis=(0, 3)) > 0).mean()),
        "definition_version": 1 + agent.updates,
    }


def _constraint_sums(agent: Expected, i: int) -> dict[str, float]:
    completed = agent.completed()
    costs = [sum(seen.costs[i] for seen in steps) for steps in completed.values()]
    budgets = [agent.budget(episode, i) for episode in completed]
    regrets = np.cumsum([cost - budget for cost, budget in zip(costs, budgets, strict=True)])
    sums = {
        "last_cost": costs[-1] if costs else 0.0,
        "mean_cost": float(np.mean(costs)) if costs else 0.0,
        "constraint_regret": float(regrets[-1]) if costs else 0.0,
        "constraint_regret_max": max(0.0, float(regrets.max())) if costs else 0.0,
        "violations": sum(cost > budget for cost, budget in zip(costs, budgets, strict=True)),
    }
    last = agent.starts[max(agent.starts)] if agent.starts else None
    if last is not None and hasattr(last, "dual_variables"):
        sums["dual_variable"] = last.dual_variables[i]
    return sums


def first_acknowledged(entries: Iterable[Entry], clients: Sequence[str], since: float) -> float:
    """Seconds after `since` until each of `clients` had a call acknowledged that began after it."""
    firsts: dict[str, float] = {}
    for entry in entries:
        if entry.outcome == OK and entry.begin >= since and entry.client in clients:
            firsts[entry.client] = min(firsts.get(entry.client, entry.end), entry.end)
    return max(firsts[client] for client in clients) - since
