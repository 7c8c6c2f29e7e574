"""Calls that carry a key can be repeated, and are applied once."""

from safe_psrl_conformance.check import check, same
from safe_psrl_conformance.problem import HORIZON, agent_spec, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import control_pb2


@check("StartEpisode repeated with its request_id gives the same reply and no new episode, even after steps of it")
def start_repeated(wire: Wire) -> None:
    name = wire.create()
    first = wire.start(name, request_id="a", state=0, with_policy=True)
    wire.report(name, seen(), episode=1, step=0)
    same("the reply", wire.start(name, request_id="a", state=0, with_policy=True), first)
    same("episodes started", wire.status(name).episode, 1)


@check("a request_id that was used with another state is ALREADY_EXISTS, REQUEST_ID_USED, and changes nothing")
def start_conflict(wire: Wire) -> None:
    name = wire.create()
    wire.start(name, request_id="a", state=0)
    found = wire.refused_unchanged(name, "ALREADY_EXISTS REQUEST_ID_USED", wire.start, name, request_id="a", state=1)
    same("metadata `episode`", found.metadata.get("episode"), "1")


@check(
    "GetAction for the same episode, step and state gives the same action and writes nothing; earlier steps may be requested"
)
def action_repeated(wire: Wire) -> None:
    name = wire.create_started()
    first = wire.act(name, 0, episode=1, step=0)
    wire.report(name, seen(), episode=1, step=0)
    before = wire.status(name).version
    same("the action of step 0", wire.act(name, 0, episode=1, step=0), first)
    same("the version", wire.status(name).version, before)


@check("a transition reported again is a duplicate and not learned twice, by ReportTransition or Step")
def report_repeated(wire: Wire) -> None:
    name = wire.create_started()
    wire.report(name, seen(), episode=1, step=0)
    before = wire.status(name)
    again = wire.report(name, seen(), episode=1, step=0)
    same("duplicate, episode and step", (again.duplicate, again.episode, again.step), (True, 1, 0))
    same("duplicate, by Step", wire.step(name, seen(), episode=1, step=0).duplicate, True)
    after = wire.status(name)
    same("version and digest", (after.version, after.state_digest), (before.version, before.state_digest))


@check("Step repeated gives the same reply but for duplicate, also for the last step of an episode that is complete")
def step_repeated(wire: Wire) -> None:
    name = wire.create_started()
    replies = [wire.step(name, seen(), episode=1, step=step) for step in range(HORIZON)]
    for step, reply in enumerate(replies):
        expected = control_pb2.StepResponse()
        expected.CopyFrom(reply)
        expected.duplicate = True
        same(f"the reply to step {step}", wire.step(name, seen(), episode=1, step=step), expected)


@check("a step reported again with other values is ALREADY_EXISTS, TRANSITION_CONFLICT, and changes nothing")
def report_conflict(wire: Wire) -> None:
    name = wire.create_started()
    wire.report(name, seen(0, 1, 2), episode=1, step=0)
    for other in (seen(0, 1, 3), seen(0, 0, 2), seen(1, 1, 2), seen(0, 1, 2, reward=0.5), seen(0, 1, 2, terminal=True)):
        found = wire.refused_unchanged(name, "ALREADY_EXISTS TRANSITION_CONFLICT", wire.report, name, other, episode=1, step=0)
        same("metadata `step`", found.metadata.get("step"), "0")


@check("ReportEpisode repeated, with its `next`, gives the same next episode, and everything is applied once")
def trajectory_repeated(wire: Wire) -> None:
    name = wire.create_started()
    following = control_pb2.StartEpisodeRequest(request_id="b", state=0, with_policy=True)
    first = wire.report_episode(name, 1, [seen()] * HORIZON, next=following)
    before = wire.status(name).version
    again = wire.report_episode(name, 1, [seen()] * HORIZON, next=following)
    same("duplicates", again.duplicates, HORIZON)
    same("the next episode", again.next, first.next)
    same("the version", wire.status(name).version, before)


@check("ReportEpisode is atomic: with an invalid last transition it changes nothing, and begins no episode")
def trajectory_all_or_none(wire: Wire) -> None:
    name = wire.create_started()
    following = control_pb2.StartEpisodeRequest(request_id="b")
    bad = [seen(), seen(), seen(next_state=99)]
    found = wire.refused_unchanged(name, "INVALID_ARGUMENT", wire.report_episode, name, 1, bad, next=following)
    same("the field", list(found.violations), ["transitions[2].next_state"])
    wrong = control_pb2.StartEpisodeRequest(request_id="b", state=3)
    wire.refused_unchanged(
        name, "INVALID_ARGUMENT NOT_AN_INITIAL_STATE", wire.report_episode, name, 1, [seen()] * HORIZON, next=wrong
    )


@check("EndEpisode repeated returns how the episode ended the first time, whatever it requests")
def end_repeated(wire: Wire) -> None:
    name = wire.create_started()
    first = wire.end(name, 1, "EPISODE_END_TRUNCATED")
    before = wire.status(name).version
    same("the reply", wire.end(name, 1, "EPISODE_END_ABANDONED"), first)
    same("the version", wire.status(name).version, before)


@check("CorrectSignal replaces a learned reward once: repeated it is a duplicate, other values are CORRECTION_CONFLICT")
def correction(wire: Wire) -> None:
    spec = agent_spec()
    spec.cmdp.reward_learned = True
    name = wire.create(spec=spec)
    wire.start(name, request_id="a")
    wire.report(name, seen(reward=0.25), episode=1, step=0)
    request = control_pb2.CorrectSignalRequest(agent=name, episode=1, step=0, reward=0.75)
    same("duplicate", wire.call(wire.control.CorrectSignal, request).duplicate, False)
    before = wire.status(name)
    same("duplicate, repeated", wire.call(wire.control.CorrectSignal, request).duplicate, True)
    same("the version", wire.status(name).version, before.version)
    same("the report, repeated", wire.report(name, seen(reward=0.25), episode=1, step=0).duplicate, True)
    request.reward = 0.5
    wire.refused_unchanged(name, "ALREADY_EXISTS CORRECTION_CONFLICT", wire.call, wire.control.CorrectSignal, request)
    known = control_pb2.CorrectSignalRequest(agent=name, episode=1, step=0, costs=[1.0, 1.0])
    wire.refused_unchanged(name, "INVALID_ARGUMENT SIGNAL_KNOWN", wire.call, wire.control.CorrectSignal, known)
    early = control_pb2.CorrectSignalRequest(agent=name, episode=1, step=1, reward=0.5)
    wire.refused_unchanged(name, "FAILED_PRECONDITION STEP_NOT_REPORTED", wire.call, wire.control.CorrectSignal, early)
    for step in range(1, HORIZON):
        wire.report(name, seen(reward=0.0), episode=1, step=step)
    same("the reward of the episode", wire.status(name).last_reward, 0.75)
