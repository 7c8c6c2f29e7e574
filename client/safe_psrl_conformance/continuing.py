"""Tasks without episodes."""

from typing import Any

from safe_psrl_client.agent import drawn_action
from safe_psrl_conformance.check import check, same
from safe_psrl_conformance.problem import agent_spec, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import control_pb2, model_pb2


def _continuing(**fields: Any) -> model_pb2.AgentSpec:
    """The problem without a horizon, with budgets per step."""
    spec = agent_spec(**fields)
    spec.cmdp.continuing, spec.cmdp.horizon = True, 0
    for constraint, budget in zip(spec.cmdp.constraints, (0.5, 0.8), strict=True):
        constraint.cost_budget, constraint.satisfiable_cost = budget, budget / 3
    return spec


@check("the step that ends an epoch begins the next: the reply has its number and step 0, also when the call is repeated")
def epochs_follow_each_other(wire: Wire) -> None:
    name = wire.create(spec=_continuing(max_epoch_steps=1))
    started = wire.start(name, state=0)
    same("epoch, step and horizon", (started.episode, started.step, started.horizon), (1, 0, 0))
    first, again = (wire.step(name, seen(), episode=1, step=0) for _ in range(2))
    for reply in (first, again):
        same("done, next epoch and step", (reply.episode_done, reply.next_episode, reply.next_step), (True, 2, 0))
    same("the repeated action", again.action, first.action)
    same("duplicate", (first.duplicate, again.duplicate), (False, True))
    same("transitions", wire.status(name).transitions, 1)


@check("StartEpisode of a running task returns its place; from another state it is STATE_MISMATCH unless abandon_open")
def the_running_task_is_found(wire: Wire) -> None:
    name = wire.create(spec=_continuing(max_epoch_steps=1))
    wire.start(name, state=0)
    wire.step(name, seen(next_state=2), episode=1, step=0)
    found = wire.start(name, state=2)
    same("epoch, step and state", (found.episode, found.step, found.state), (2, 0, 2))
    wire.refused_unchanged(name, "INVALID_ARGUMENT STATE_MISMATCH", wire.start, name, state=1)
    same("the epoch after a reset", wire.start(name, state=1, abandon_open=True).episode, 3)


@check("GetAction and ReportTransition need only agent and state, across epochs")
def agent_and_state_alone(wire: Wire) -> None:
    name = wire.create(spec=_continuing(max_epoch_steps=1))
    for epoch in range(1, 4):
        same("the epoch", wire.act(name, 0).episode, epoch)
        reply = wire.report(name, seen())
        same("the next epoch and step", (reply.next_episode, reply.next_step), (epoch + 1, 0))


@check("a continuing task has no last step: a terminal transition is INVALID_ARGUMENT")
def no_end(wire: Wire) -> None:
    name = wire.create(spec=_continuing())
    wire.start(name, state=0)
    wire.refused_unchanged(name, "INVALID_ARGUMENT", wire.step, name, seen(terminal=True), episode=1, step=0)


@check("a policy comes with the draws of its actions; reporting the end of an epoch returns the next one, also when repeated")
def policies_are_played_elsewhere(wire: Wire) -> None:
    name = wire.create(spec=_continuing(max_epoch_steps=1))
    place = wire.start(name, state=0, with_policy=True)
    same("probabilities and draws", (len(place.policy.probabilities), len(place.draws)), (12, 1))
    same("the action of the first draw", drawn_action(place.policy, 0, place.draws[0]), place.action)
    for state in range(place.policy.num_states):
        served = wire.act(name, state, episode=1, step=0).action
        same(f"the action in state {state}", drawn_action(place.policy, state, place.draws[0]), served)
    following = control_pb2.StartEpisodeRequest(with_policy=True)
    first, again = (wire.report_episode(name, 1, [seen(action=place.action)], next=following) for _ in range(2))
    same("duplicates", (first.duplicates, again.duplicates), (0, 1))
    same("the next epoch, step and state", (first.next.episode, first.next.step, first.next.state), (2, 0, 0))
    same("the repeated reply", again.next, first.next)
