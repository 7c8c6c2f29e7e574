"""Requests that make sense to an agent as it is now: what the others are made of, and what moves it on."""

import hashlib
import random
from itertools import pairwise
from typing import Any, Final

import numpy as np

from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.record import AgentRecord
from safe_psrl_server.agents.snapshot import snapshot_of
from safe_psrl_server.rpc.middleware import MAX_BATCH_CALLS

PRESETS: Final = ("factored-toy", "inventory", "streaming-buffer")


def request_for(method: str, record: AgentRecord, guest: str, chosen: random.Random) -> list[Any]:
    """The messages of a call of `method` about `record`, or about `guest` if it makes an agent."""
    if method in {"CreateAgent", "ImportAgent"}:
        return _making(method, record, guest, chosen)
    if method not in REQUESTS:
        return [getattr(admin_pb2, f"{method}Request")(agent=record.name)]
    return [REQUESTS[method](record, chosen) for _ in range(chosen.randint(1, 6) if method == "StepStream" else 1)]


def _state(record: AgentRecord, chosen: random.Random) -> int:
    """Where the open episode is, or where one may begin."""
    open_episodes = record.open_episodes
    if open_episodes and open_episodes[-1].transitions:
        return int(open_episodes[-1].transitions[-1].next_state)
    if open_episodes and open_episodes[-1].started.HasField("state"):
        return int(open_episodes[-1].started.state)
    return int(chosen.choice(np.flatnonzero(record.definition.spec.initial_distribution)))


def _transition(record: AgentRecord, state: int, chosen: random.Random) -> control_pb2.Transition:
    spec = record.definition.spec
    action = int(chosen.choice(np.flatnonzero(spec.available_actions[state])))
    next_state = int(chosen.choice(np.flatnonzero(spec.support[0, state, action])))
    return control_pb2.Transition(
        state=state,
        action=action,
        next_state=next_state,
        reward=chosen.random() if chosen.random() < 0.8 or spec.learned_signals.any() else None,
        costs=[chosen.random() for _ in range(spec.num_constraints)],
        terminal=chosen.random() < 0.05,
    )


def _start(record: AgentRecord, chosen: random.Random) -> control_pb2.StartEpisodeRequest:
    first = int(chosen.choice(np.flatnonzero(record.definition.spec.initial_distribution)))
    return control_pb2.StartEpisodeRequest(
        agent=record.name,
        request_id=chosen.choice(("", "a", "b", "c")),
        state=chosen.choice((None, first)),
        with_policy=chosen.random() < 0.5,
        abandon_open=chosen.random() < 0.7,
    )


def _action(record: AgentRecord, chosen: random.Random) -> control_pb2.GetActionRequest:
    return control_pb2.GetActionRequest(agent=record.name, state=_state(record, chosen), **_where(record, chosen))


def _where(record: AgentRecord, chosen: random.Random) -> dict[str, int]:
    open_episodes = record.open_episodes
    if not open_episodes or chosen.random() < 0.3:
        return {}
    ahead = chosen.choice((0, 0, 0, 0, 0, -1, 1))  # a repetition, or a gap
    return {"episode": open_episodes[-1].number, "step": open_episodes[-1].next_step + ahead}


def _report(record: AgentRecord, chosen: random.Random) -> control_pb2.ReportTransitionRequest:
    seen = _transition(record, _state(record, chosen), chosen)
    return control_pb2.ReportTransitionRequest(agent=record.name, transition=seen, **_where(record, chosen))


def _step(record: AgentRecord, chosen: random.Random) -> control_pb2.StepRequest:
    seen = _transition(record, _state(record, chosen), chosen)
    return control_pb2.StepRequest(agent=record.name, transition=seen, **_where(record, chosen))


def _message(record: AgentRecord, chosen: random.Random) -> control_pb2.StepStreamRequest:
    if chosen.random() < 0.7:
        return _call(record, chosen)
    calls = [_call(record, chosen) for _ in range(chosen.choice((0, 1, 2, 3, 8)))]
    if chosen.random() < 0.02:
        calls = [_call(record, chosen)] * chosen.choice((MAX_BATCH_CALLS, MAX_BATCH_CALLS + 1))
    batch = control_pb2.StepStreamBatch(calls=calls)
    return control_pb2.StepStreamRequest(tag=chosen.getrandbits(63), batch=batch)


def _call(record: AgentRecord, chosen: random.Random) -> control_pb2.StepStreamRequest:
    kinds = {"step": _step, "start_episode": _start, "report_episode": _episode}
    tag, (kind,) = chosen.getrandbits(63), chosen.choices(list(kinds), (6, 3, 2))
    return control_pb2.StepStreamRequest(tag=tag, **{kind: kinds[kind](record, chosen)})


def _episode(record: AgentRecord, chosen: random.Random) -> control_pb2.ReportEpisodeRequest:
    latest = record.latest_episode
    if latest is None:
        return control_pb2.ReportEpisodeRequest(agent=record.name, episode=1)
    seen = [
        control_pb2.Transition(state=t.state, action=t.action, next_state=t.next_state, reward=t.reward, costs=t.costs)
        for t in latest.transitions
    ]
    while len(seen) < record.definition.spec.horizon and chosen.random() < 0.8:
        seen.append(_transition(record, seen[-1].next_state if seen else _state(record, chosen), chosen))
    request = control_pb2.ReportEpisodeRequest(agent=record.name, episode=latest.number, transitions=seen)
    if chosen.random() < 0.4:
        request.next.CopyFrom(_start(record, chosen))
    return request


def _end(record: AgentRecord, chosen: random.Random) -> control_pb2.EndEpisodeRequest:
    return control_pb2.EndEpisodeRequest(agent=record.name, episode=record.state.episode, end=chosen.choice((0, 2, 3)))  # type: ignore[arg-type]


def _making(method: str, record: AgentRecord, guest: str, chosen: random.Random) -> list[Any]:
    if method == "ImportAgent":
        return importing(guest, snapshot_of(record).SerializeToString(), chosen)
    request = admin_pb2.CreateAgentRequest(agent=guest)
    if chosen.random() < 0.3:
        request.preset, request.seed = chosen.choice(PRESETS), chosen.getrandbits(20)
        request.options.cap_pessimism = chosen.random() < 0.5
    else:
        request.spec.CopyFrom(record.definition.message)
    return [request]


def importing(guest: str, data: bytes, chosen: random.Random, *, spoiled: bool = False) -> list[admin_pb2.ImportAgentRequest]:
    """`data` in chunks of any size, empty ones too. If `spoiled`, the frame may be wrong."""
    cuts = sorted(chosen.randrange(len(data) + 1) for _ in range(chosen.choice((0, 0, 1, 2, 5))))
    ends = [0, *cuts, len(data)]
    requests = [admin_pb2.ImportAgentRequest(chunk=data[first:second]) for first, second in pairwise(ends)]
    requests[0].agent = guest
    requests[-1].digest = hashlib.sha256(data).digest()
    if spoiled:
        way = chosen.randrange(6)
        if way == 0:
            chosen.shuffle(requests)
        elif way == 1:
            requests[-1].digest = chosen.choice((b"", bytes(32), requests[-1].digest[:-1]))
        elif way == 2:
            requests.append(chosen.choice(requests))
        elif way == 3:
            requests[-1].agent = "another"
        elif way == 4:
            del requests[chosen.randrange(len(requests))]
        else:
            requests.extend([admin_pb2.ImportAgentRequest()] * 50)
    return requests


def _pages(_record: AgentRecord, chosen: random.Random) -> admin_pb2.ListAgentsRequest:
    return admin_pb2.ListAgentsRequest(page_size=chosen.choice((0, 1, 1000)), page_token=chosen.choice(("", "a", "z")))


def _watch(record: AgentRecord, chosen: random.Random) -> admin_pb2.WatchAgentsRequest:
    return admin_pb2.WatchAgentsRequest(agents=[record.name], interval_seconds=chosen.choice((0.0, 0.1, 60.0)))


def _pause(record: AgentRecord, chosen: random.Random) -> admin_pb2.PauseAgentRequest:
    return admin_pb2.PauseAgentRequest(agent=record.name, reason=chosen.choice(("", "night")))


def _update(record: AgentRecord, chosen: random.Random) -> admin_pb2.UpdateAgentRequest:
    request = admin_pb2.UpdateAgentRequest(agent=record.name, update=record.definition.message, reason=chosen.choice(("", "x")))
    request.dry_run = chosen.random() < 0.2
    constraint = chosen.choice(request.update.cmdp.constraints)
    horizon = request.update.cmdp.horizon
    constraint.cost_budget = chosen.uniform(
        constraint.satisfiable_cost + 0.01, max(horizon, constraint.satisfiable_cost + 0.02)
    )
    request.update.drift.on_detect = chosen.choice(("alert", "forget"))
    request.update.drift.false_alarm_steps = chosen.choice((1.1, 1e6))
    paths = (
        f"cmdp.constraints.{constraint.name}.cost_budget",
        "drift.on_detect",
        "drift.false_alarm_steps",
        "options",
        "drift",
    )
    request.update_mask.paths.extend(chosen.sample(paths, chosen.randrange(1, 4)))
    request.expected_version = chosen.choice((0, 0, record.definition_version))
    return request


def _events(record: AgentRecord, chosen: random.Random) -> admin_pb2.ListEventsRequest:
    return admin_pb2.ListEventsRequest(
        agent=record.name, page_size=chosen.choice((0, 1, 1000)), page_token=chosen.choice(("", "1"))
    )


def _policy(record: AgentRecord, chosen: random.Random) -> admin_pb2.GetPolicyRequest:
    return admin_pb2.GetPolicyRequest(agent=record.name, episode=chosen.choice((0, record.state.episode)))


def _correction(record: AgentRecord, chosen: random.Random) -> control_pb2.CorrectSignalRequest:
    """Of a step that was reported, if there is one."""
    seen = [(episode.number, step) for episode in record.episodes.values() for step in range(episode.next_step)]
    episode, step = chosen.choice(seen) if seen else (1, 0)
    costs = [chosen.random() for _ in range(record.definition.spec.num_constraints)]
    return control_pb2.CorrectSignalRequest(
        agent=record.name, episode=episode, step=step, reward=chosen.random(), costs=costs if chosen.random() < 0.5 else []
    )


REQUESTS: Final[dict[str, Any]] = {
    "StartEpisode": _start,
    "GetAction": _action,
    "ReportTransition": _report,
    "Step": _step,
    "StepStream": _message,
    "ReportEpisode": _episode,
    "EndEpisode": _end,
    "CorrectSignal": _correction,
    "ListAgents": _pages,
    "WatchAgents": _watch,
    "PauseAgent": _pause,
    "GetPolicy": _policy,
    "UpdateAgent": _update,
    "ListEvents": _events,
}


def small_specs() -> list[model_pb2.AgentSpec]:
    """Agents that differ in everything that a call can depend on, and are small enough to be compared all the time."""
    base = {"num_states": 3, "num_actions": 2, "horizon": 4}
    reward = model_pb2.Table(shape=[3, 2], values=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    toll = model_pb2.Constraint(name="toll", cost=reward, cost_budget=2.0, satisfiable_cost=0.5)
    wear = model_pb2.Constraint(name="wear", cost=reward, cost_budget=3.0, satisfiable_cost=1.0, learned=True)
    known = model_pb2.CmdpSpec(**base, reward=reward, constraints=[toll])  # type: ignore[arg-type]
    learned = model_pb2.CmdpSpec(**base, reward=reward, reward_learned=True, constraints=[toll, wear])  # type: ignore[arg-type]
    learned.initial_distribution.CopyFrom(model_pb2.Table(shape=[3], values=[0.5, 0.5, 0.0]))
    learned.available_actions.CopyFrom(model_pb2.Table(shape=[3, 2], values=[1, 0, 1, 1, 1, 1]))
    stepwise = model_pb2.CmdpSpec(**base, reward=reward, constraints=[toll], non_stationary=True)  # type: ignore[arg-type]
    fallback = model_pb2.Policy(horizon=4, num_states=3, actions=[1] * 12)
    return [
        model_pb2.AgentSpec(cmdp=known, fallback_policy=fallback),
        model_pb2.AgentSpec(cmdp=learned, max_open_episodes=3),
        model_pb2.AgentSpec(cmdp=stepwise, options=model_pb2.SafePsrlOptions(method="theorem", cap_pessimism=True)),
        model_pb2.AgentSpec(cmdp=known, options=model_pb2.SafePsrlOptions(method="certified"), seed=7),
    ]
