"""StepStream: messages are answered in order, with a status of their own each."""

from itertools import repeat

from safe_psrl_proto.v1 import control_pb2
from tests.safe_psrl_server.rpc.streams import Request, answered, batch, episode_of, folded, replies_to, start, step, whole
from tests.safe_psrl_server.specs import HORIZON, transition
from tests.safe_psrl_server.wire import Wire, without_incarnation

PATH = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]


def test_a_stream_answers_in_order_and_outlives_errors(wire: Wire, agent: str) -> None:
    """Each message has its own status; a bad one changes nothing and ends nothing."""
    replies = answered(
        wire,
        start(agent, 10, request_id="s"),
        step(agent, 11, 1, 0),
        step(agent, 12, 1, 2),
        step(agent, 13, 1, 0, 0, 1, 2),
        Request(tag=-14),
        step(agent, 15, 1, 1, 0, 9, 0),
        *(step(agent, 16 + i, 1, number) for i, number in enumerate((1, 1, 2))),
    )
    assert [reply.tag for reply in replies] == [10, 11, 12, 13, -14, 15, 16, 17, 18]
    kinds = ["start_episode", "step", "error", "error", "error", "error", "step", "step", "step"]
    assert [reply.WhichOneof("outcome") for reply in replies] == kinds
    gap, conflict, empty, bad = (reply.error for reply in replies if reply.HasField("error"))
    assert (gap.code, gap.reason, dict(gap.metadata)) == (11, "STEP_GAP", {"expected_step": "1", "episode": "1"})
    assert (conflict.code, conflict.reason) == (6, "TRANSITION_CONFLICT")
    assert (empty.code, empty.metadata["field"]) == (3, "call")
    assert (bad.code, bad.metadata["field"]) == (3, "transition.action")
    assert [reply.step.duplicate for reply in replies[6:]] == [False, True, False]
    assert replies[-1].step.episode_done
    assert wire.status(agent).transitions == HORIZON


def test_a_stream_serves_several_agents(wire: Wire) -> None:
    """Interleaved, pipelined without waiting, each agent in its own order; the result is that of single calls."""
    agents, alone = [wire.create() for _ in range(5)], wire.create()
    episodes = [zip(*(episode_of(agent, number) for agent in agents), strict=True) for number in range(1, 7)]
    replies = answered(wire, *(call for episode in episodes for together in episode for call in together))
    assert not [reply for reply in replies if reply.HasField("error")]
    assert [reply.tag for reply in replies] == sorted(reply.tag for reply in replies)
    for _ in range(6):
        wire.report_episode(alone, wire.start(alone).episode, *[transition()] * HORIZON)
    assert {wire.status(agent).state_digest for agent in agents} == {wire.status(alone).state_digest}


def test_a_stream_that_its_client_drops_leaves_the_agent_usable(wire: Wire, agent: str) -> None:
    """What was sent and answered is kept; the agent goes on over another call."""
    wire.start(agent)
    stream = wire.control.StepStream(repeat(step(agent, 1, 1, 0)))
    assert next(stream).step.step == 0
    stream.cancel()
    assert wire.step(agent, transition(), episode=1, step=1).episode == 1
    assert wire.status(agent).transitions == 2


def test_a_whole_episode_on_a_stream(wire: Wire, agent: str) -> None:
    twin = wire.create()
    wire.start(twin)
    wire.report_episode(twin, 1, *PATH)
    replies = answered(wire, start(agent), whole(agent, 1, 1, *PATH[:1]), whole(agent, 2, 1, *PATH), whole(agent, 3, 1, *PATH))
    assert [reply.tag for reply in replies] == [0, 1, 2, 3]
    reports = [reply.report_episode for reply in replies[1:]]
    assert [(report.duplicates, report.episode_done) for report in reports] == [(0, False), (1, True), (3, True)]
    assert not any(report.HasField("next") for report in reports)
    assert folded(wire, agent) == folded(wire, twin)


def test_whole_episodes_one_after_the_other_on_a_stream(wire: Wire, agent: str) -> None:
    """Each begins the next one, alone or with others in a message: a call an episode."""
    twin = wire.create()

    def following(number: int) -> control_pb2.StartEpisodeRequest:
        return control_pb2.StartEpisodeRequest(state=0, request_id=f"e{number}", with_policy=True)

    for name in (agent, twin):
        wire.start(name)
    reports = [whole(agent, number, number, *PATH, next=following(number + 1)) for number in range(1, 6)]
    first, second, rest = answered(wire, reports[0], reports[1], batch(*reports[2:]))
    replies = [first, second, *rest.batch.replies]
    assert [reply.tag for reply in replies] == [1, 2, 3, 4, 5]
    assert [reply.report_episode.next.episode for reply in replies] == [2, 3, 4, 5, 6]
    for number, reply in enumerate(replies, 1):
        other = wire.report_episode(twin, number, *PATH, next=following(number + 1))
        for started in (other.next, reply.report_episode.next):
            without_incarnation(started)
        assert other == reply.report_episode
        assert len(reply.report_episode.next.policy.actions) == 4 * HORIZON
    assert folded(wire, agent) == folded(wire, twin)


def test_a_bad_episode_on_a_stream_is_refused_alone(wire: Wire, agent: str) -> None:
    """It is applied whole or not at all; what comes after it is judged by itself."""
    following = control_pb2.StartEpisodeRequest(agent="another")
    wire.start(agent)
    with wire.unchanged(agent):
        bad = [
            whole(agent, 1, 1, PATH[0], PATH[2]),
            whole(agent, 2, 9, *PATH),
            whole("nobody", 3, 1, *PATH),
            whole(agent, 4, 1, *PATH, next=following),
            whole(agent, 5, 1, *PATH[:2], next=control_pb2.StartEpisodeRequest()),
            whole(agent, 6, 1, *PATH, PATH[0]),
        ]
        replies = answered(wire, *bad)
        assert [reply.tag for reply in replies] == [1, 2, 3, 4, 5, 6]
        assert [reply.error.code for reply in replies] == [3, 5, 5, 3, 3, 3]
        fields = [reply.error.metadata.get("field") for reply in replies]
        assert fields == ["transitions[1].state", None, None, "next.agent", "next", "transitions"]
    *refused, done = replies_to(wire, *bad, whole(agent, 7, 1, *PATH))
    assert refused == replies
    assert done.report_episode.episode_done
