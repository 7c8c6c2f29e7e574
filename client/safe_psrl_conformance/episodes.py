"""How an episode begins, continues and ends."""

from safe_psrl_conformance.check import check, require, same
from safe_psrl_conformance.problem import HORIZON, STATES, agent_spec, seen
from safe_psrl_conformance.wire import Wire
from safe_psrl_proto.v1 import control_pb2, events_pb2


@check("StartEpisode begins episode 1, with the problem's horizon, a policy if requested, and that policy's action")
def beginning(wire: Wire) -> None:
    name = wire.create()
    reply = wire.start(name, state=1, request_id="a", with_policy=True)
    same("the episode", reply.episode, 1)
    same("the horizon", reply.horizon, HORIZON)
    same("the policy's size", len(reply.policy.actions), HORIZON * STATES)
    same("the action", reply.action, reply.policy.actions[1])
    same("open episodes", list(wire.status(name).open_episodes), [1])


@check("GetAction without an episode begins one if none is open, and then belongs to it")
def beginning_by_acting(wire: Wire) -> None:
    name = wire.create()
    first, again = wire.act(name, 0), wire.act(name, 0)
    same("episode and step", (first.episode, first.step), (1, 0))
    same("the second reply", again, first)
    same("episodes started", wire.status(name).episode, 1)


@check("a second episode is rejected with EPISODE_OPEN, open_episode and expected_step, unless abandon_open is set")
def one_at_a_time(wire: Wire) -> None:
    name = wire.create_started()
    wire.report(name, seen(), episode=1, step=0)
    found = wire.refused_unchanged(name, "FAILED_PRECONDITION EPISODE_OPEN", wire.start, name, request_id="b")
    same("metadata `open_episode`", found.metadata.get("open_episode"), "1")
    same("metadata `expected_step`", found.metadata.get("expected_step"), "1")
    same("the episode with abandon_open", wire.start(name, request_id="b", abandon_open=True).episode, 2)
    same("how the first ended", wire.end(name, 1).end, events_pb2.EPISODE_END_ABANDONED)


@check("the step horizon - 1 completes the episode; until then Step gives the next action")
def last_step_completes(wire: Wire) -> None:
    name = wire.create()
    policy = wire.start(name, request_id="a", with_policy=True).policy
    for step in range(HORIZON):
        reply = wire.step(name, seen(), episode=1, step=step)
        last = step == HORIZON - 1
        same(f"episode_done at step {step}", reply.episode_done, last)
        same(f"an action at step {step}", reply.HasField("action"), not last)
        if not last:
            same(f"the action after step {step}", reply.action, policy.actions[(step + 1) * STATES])
    status = wire.status(name)
    same("completed episodes", status.completed_episodes, 1)
    same("open episodes", list(status.open_episodes), [])


@check("a terminal transition completes the episode early, and reports so when repeated")
def terminal_completes(wire: Wire) -> None:
    name = wire.create_started()
    reply = wire.step(name, seen(terminal=True), episode=1, step=0)
    again = wire.step(name, seen(terminal=True), episode=1, step=0)
    same("duplicate, first and again", (reply.duplicate, again.duplicate), (False, True))
    for answer in (reply, again):
        require(answer.episode_done, "episode_done is false")
        require(not answer.HasField("action"), "there is an action after the end")
    same("completed episodes", wire.status(name).completed_episodes, 1)


@check("EndEpisode truncates and keeps what was reported; the episode is not completed, and later steps are EPISODE_CLOSED")
def breaking_off(wire: Wire) -> None:
    name = wire.create_started()
    wire.report(name, seen(), episode=1, step=0)
    reply = wire.end(name, 1)
    same("the end", reply.end, events_pb2.EPISODE_END_TRUNCATED)
    same("its steps", reply.steps, 1)
    status = wire.status(name)
    same("completed episodes and transitions", (status.completed_episodes, status.transitions), (0, 1))
    wire.refused_unchanged(name, "FAILED_PRECONDITION EPISODE_CLOSED", wire.report, name, seen(), episode=1, step=1)


@check("with several episodes open, a call must name one, else it is EPISODE_AMBIGUOUS")
def several_at_once(wire: Wire) -> None:
    name = wire.create(spec=agent_spec(max_open_episodes=2))
    same("the episodes", [wire.start(name, request_id=key).episode for key in "ab"], [1, 2])
    wire.refused_unchanged(name, "FAILED_PRECONDITION EPISODE_AMBIGUOUS", wire.report, name, seen())
    same("the step of episode 2", wire.report(name, seen(), episode=2, step=0).step, 0)


@check("ReportEpisode records a trajectory; steps reported before count as duplicates")
def whole_trajectory(wire: Wire) -> None:
    name = wire.create_started()
    wire.report(name, seen(), episode=1, step=0)
    reply = wire.report_episode(name, 1, [seen()] * HORIZON)
    same("duplicates", reply.duplicates, 1)
    require(reply.episode_done, "the episode is not done")
    same("transitions", wire.status(name).transitions, HORIZON)


@check("ReportEpisode with `next` begins the next episode in the same transaction, planned with what it reports")
def report_and_begin(wire: Wire) -> None:
    names = [wire.create(), wire.create()]
    trajectory = [seen(0, 1, 2), seen(2, 2, 3), seen(3, 0, 1)]
    for name in names:
        wire.start(name, request_id="a")
    following = control_pb2.StartEpisodeRequest(request_id="b", state=1, with_policy=True)
    together = wire.report_episode(names[0], 1, trajectory, next=following).next
    wire.report_episode(names[1], 1, trajectory)
    apart = wire.start(names[1], request_id="b", state=1, with_policy=True)
    for reply in (together, apart):
        reply.ClearField("incarnation")  # that of its agent
    same("the next episode, compared with one that is begun by itself,", together, apart)
    same("open episodes", list(wire.status(names[0]).open_episodes), [2])
