"""What every agent promises, in process or remote, in each mode: one suite for all."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from safe_psrl_client import Agent, Client, EpisodeClosedError, EpisodeOpenError, RemoteAgent, play
from safe_psrl_testbed import Scenario, TabularEnvironment
from safe_psrl_testbed.local_agent import LocalAgent

SEED = 5
KINDS = ("in process", "step", "stream", "local")


class Subject(NamedTuple):
    """An agent, and what it has learned."""

    agent: Agent
    transitions: Callable[[], int]
    dual_variables: Callable[[], list[float]]
    episode: Callable[[], int]


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, buffer: Scenario, agent_name: str) -> Iterator[Subject]:
    if request.param == "in process":
        local = LocalAgent(buffer.spec, seed=SEED)
        yield Subject(
            local,
            lambda: int(local.state.transition_counts.sum()),
            lambda: [float(dual) for dual in local.state.dual_variables],
            lambda: local.episode,
        )
        return
    with ExitStack() as stack:
        client = stack.enter_context(Client(request.getfixturevalue("server")))
        client.create_agent(agent_name, "streaming-buffer", seed=SEED)
        agent = stack.enter_context(RemoteAgent(client, agent_name, request.param))

        yield Subject(
            agent,
            lambda: client.get_agent(agent_name).status.transitions,
            lambda: [c.dual_variable for c in client.get_agent(agent_name).status.constraints],
            lambda: client.get_agent(agent_name).status.episode,
        )


def walk(agent: Agent, states: Sequence[int], first_action: int) -> int | None:
    """Step along `states` with the proposed actions; known rewards and costs are left out."""
    action: int | None = first_action
    for state, next_state in itertools.pairwise(states):
        assert action is not None
        action = agent.step(state, action, next_state)
    return action


def test_learning_is_the_same_everywhere(
    subject: Subject, world: Callable[[int], TabularEnvironment], buffer: Scenario
) -> None:
    """The same seed and the same world give the same actions, rewards, costs and dual variables, to the bit."""
    reference = LocalAgent(buffer.spec, seed=SEED)
    assert play(world(8), subject.agent, 40) == play(world(8), reference, 40)
    assert subject.dual_variables() == reference.state.dual_variables.tolist()
    assert subject.transitions() == 400


def test_the_last_step_has_no_next_action(subject: Subject) -> None:
    action = subject.agent.begin(0)
    assert walk(subject.agent, [0] * 11, action) is None
    subject.agent.finish()
    assert subject.transitions() == 10


def test_a_terminal_step_ends_the_episode(subject: Subject) -> None:
    action = subject.agent.begin(0)
    assert subject.agent.step(0, action, 1, 0.0, [float(action == 0)], terminal=True) is None
    subject.agent.finish()
    assert subject.transitions() == 1
    subject.agent.begin(0)


def test_another_action_than_the_proposed_may_be_executed(subject: Subject) -> None:
    action = subject.agent.begin(0)
    assert subject.agent.step(0, 1 - action, 0) is not None
    subject.agent.finish()
    assert subject.transitions() == 1


@pytest.mark.parametrize("calls", [["finish"], ["abandon", "abandon"]], ids=["finish", "abandon twice"])
def test_ending_early_keeps_reported_steps_and_allows_another_episode(subject: Subject, calls: list[str]) -> None:
    walk(subject.agent, [0, 1, 2], subject.agent.begin(0))
    for call in calls:
        getattr(subject.agent, call)()
    assert subject.transitions() == 2
    assert subject.agent.begin(0) in {0, 1}
    assert subject.episode() == 2


def test_an_open_episode_prevents_another(subject: Subject) -> None:
    subject.agent.begin(0)
    with pytest.raises(EpisodeOpenError):
        subject.agent.begin(0)
    subject.agent.finish()
    subject.agent.begin(0)


def test_there_is_no_step_outside_an_episode(subject: Subject) -> None:
    for before in (lambda: None, lambda: walk(subject.agent, [0] * 11, subject.agent.begin(0)), subject.agent.finish):
        before()
        with pytest.raises(EpisodeClosedError):
            subject.agent.step(0, 0, 0)
    assert subject.transitions() == 10


def test_finishing_what_never_began_does_nothing(subject: Subject) -> None:
    subject.agent.finish()
    subject.agent.abandon()
    assert subject.episode() == 0


def test_an_impossible_first_state_begins_nothing(subject: Subject) -> None:
    for state in (3, -1, 10):
        with pytest.raises(ValueError, match="state"):
            subject.agent.begin(state)
    assert subject.episode() == 0


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("state", (1, 0, 0)),
        ("state", (10, 0, 0)),
        ("action", (0, 2, 0)),
        ("action", (0, -1, 0)),
        ("next_state", (0, 0, 10)),
        ("reward", (0, 0, 0, 1.5, [1.0])),
        ("reward", (0, 0, 0, float("nan"), [1.0])),
        ("costs", (0, 0, 0, 0.0, [1.0, 1.0])),
        ("costs", (0, 0, 0, 0.0, [-0.1])),
        ("costs", (0, 0, 0, 0.0, [float("inf")])),
    ],
)
def test_an_impossible_step_is_refused_by_its_field_and_not_learned(
    subject: Subject, field: str, arguments: tuple[int, int, int]
) -> None:
    subject.agent.begin(0)
    with pytest.raises(ValueError, match=field):  # noqa: PT012  # a local policy is reported when the episode finishes
        subject.agent.step(*arguments)
        subject.agent.finish()
    assert subject.transitions() == 0
    subject.agent.abandon()
    assert subject.agent.begin(0) in {0, 1}
