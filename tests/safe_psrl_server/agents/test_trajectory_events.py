"""A trajectory is one event, and teaches what its transitions teach one by one."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from safe_psrl import CmdpSpec, Constraint
from safe_psrl_proto.v1 import control_pb2, events_pb2, model_pb2
from safe_psrl_server.agents.events import read_steps
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.store.memory import MemoryStore
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import make_spec, transition
from tests.safe_psrl_server.wire import serving

HORIZON, STATES, ACTIONS = 4, 3, 2


class Played(NamedTuple):
    """An episode: where it went, and how it is told of when not step by step."""

    path: list[control_pb2.Transition]
    told_before: int  # steps that are told of one by one before the rest is
    begins_next: bool  # with the report that ends it


def definition(learned: bool, stationary: bool, listed: bool) -> model_pb2.AgentSpec:
    """Three states, two actions, a constraint; where next states are `listed`, all of them are possible all the same."""
    shape = (STATES, ACTIONS, STATES) if stationary else (HORIZON, STATES, ACTIONS, STATES)
    spec = CmdpSpec(
        num_states=STATES,
        num_actions=ACTIONS,
        horizon=HORIZON,
        initial_distribution=np.full(STATES, 1 / STATES),
        reward=np.linspace(0, 1, STATES * ACTIONS).reshape(STATES, ACTIONS),
        reward_learned=learned,
        constraints=[Constraint("energy", np.tile([0.0, 1.0], (STATES, 1)), 2.0, 0.5, learned=learned)],
        next_states=np.broadcast_to(np.arange(STATES), shape) if listed else None,
        stationary=stationary,
    )
    return model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), seed=3)


@some.composite
def episodes(draw: some.DrawFn) -> Played:
    state, path = draw(some.integers(0, STATES - 1)), []
    steps = draw(some.integers(1, HORIZON))
    signal = some.floats(0, 1)
    for step in range(steps):
        next_state = draw(some.integers(0, STATES - 1))
        path.append(
            control_pb2.Transition(
                state=state,
                action=draw(some.integers(0, ACTIONS - 1)),
                next_state=next_state,
                reward=draw(signal),
                costs=[draw(signal)],
                terminal=step == steps - 1 < HORIZON - 1,
            )
        )
        state = next_state
    return Played(path, draw(some.integers(0, steps - 1)), draw(some.booleans()))


async def learn_by_steps(commands: Any, played: list[Played]) -> None:
    for number, episode in enumerate(played, 1):
        await commands.start_episode(control_pb2.StartEpisodeRequest(agent="steps"))
        for step, moved in enumerate(episode.path):
            request = control_pb2.StepRequest(agent="steps", episode=number, step=step, transition=moved)
            await commands.report(request, wants_action=True)


async def learn_by_trajectories(commands: Any, played: list[Played]) -> None:
    is_begun = False
    for number, episode in enumerate(played, 1):
        if not is_begun:
            await commands.start_episode(control_pb2.StartEpisodeRequest(agent="trajectories"))
        for step, moved in enumerate(episode.path[: episode.told_before]):
            request = control_pb2.ReportTransitionRequest(agent="trajectories", episode=number, step=step, transition=moved)
            await commands.report(request, wants_action=False)
        is_begun = episode.begins_next and number < len(played)
        request = control_pb2.ReportEpisodeRequest(agent="trajectories", episode=number, transitions=episode.path)
        if is_begun:
            request.next.SetInParent()
        reported = await commands.report_episode(request)
        assert (reported.duplicates, reported.done) == (episode.told_before, True)


@given(
    played=some.lists(episodes(), min_size=1, max_size=5),
    learned=some.booleans(),
    stationary=some.booleans(),
    listed=some.booleans(),
)
def test_a_trajectory_teaches_what_its_steps_teach(played: list[Played], learned: bool, stationary: bool, listed: bool) -> None:
    """To the last bit, in the record that is served and in the fold of what is stored."""

    async def compare() -> None:
        bench = await Bench(MemoryStore()).open()
        for name in ("steps", "trajectories"):
            await bench.administration.create(name, definition(learned, stationary, listed))
        await learn_by_steps(bench.commands, played)
        await learn_by_trajectories(bench.commands, played)
        one, other = [await bench.agents.verify(name) for name in ("steps", "trajectories")]
        assert one.equal
        assert other.equal
        assert one.digest == other.digest
        assert bench.record("steps").digest() == bench.record("trajectories").digest() == one.digest
        assert bench.record("trajectories").totals.transitions == sum(len(episode.path) for episode in played)
        await bench.close()

    asyncio.run(compare())


async def test_an_episode_that_is_reported_at_once_is_three_events(bench: Any) -> None:
    """Its beginning, its trajectory and its end, however long it is; the version counts events, not transitions."""
    await bench.begin(horizon=50)
    path = [transition(0, 1, 0)] * 50
    await bench.report_episode(1, *path)
    stored = [events_pb2.Event.FromString(event) for event in (await bench.store.load("a")).events]
    kinds = ["agent_created", "episode_started", "transitions_observed", "episode_ended"]
    assert [event.WhichOneof("kind") for event in stored] == kinds
    assert [step.step for step in read_steps(stored[2].transitions_observed).steps] == list(range(50))
    assert bench.record("a").version == 4


@pytest.mark.parametrize("learned", [False, True])
def test_trajectories_outlive_a_restart_and_a_crash(tmp_path: Path, learned: bool) -> None:
    """After a crash from the events alone; after a stop from the snapshot that it takes. Learning goes on the same."""
    directory, crashed = tmp_path / "data", tmp_path / "crashed"
    path = [
        control_pb2.Transition(state=s, action=a, next_state=n, reward=0.1 * n, costs=[0.3, 0.7])
        for s, a, n in [(0, 1, 2), (2, 0, 3), (3, 2, 1)]
    ]

    def play(wire: Any, number: int) -> None:
        following = control_pb2.StartEpisodeRequest(state=0)
        wire.report_episode("a", number, *path, next=following)

    with serving(store=f"sqlite:{directory}") as wire:
        wire.create(make_spec(learned=learned), "a")
        wire.start("a")
        for number in range(1, 8):
            play(wire, number)
        digest = wire.status("a").state_digest
        shutil.copytree(directory, crashed)
        play(wire, 8)
        later = wire.status("a").state_digest
    for place, known in ((crashed, digest), (directory, later)):
        with serving(store=f"sqlite:{place}") as wire:
            assert wire.status("a").state_digest == known
            assert wire.verify("a").ok
            if place is crashed:
                play(wire, 8)
                assert wire.status("a").state_digest == later


async def test_a_trajectory_that_lost_the_race_is_decided_on_anew(new_bench: NewBench) -> None:
    """Two servers on one store. The loser's plan of the next episode was made again from what the other one wrote."""
    one, alone = await new_bench(), await new_bench()
    two = await new_bench(one.store)
    path = [transition(0, 1, 2), transition(2, 0, 3), transition(3, 2, 1)]
    request = control_pb2.ReportEpisodeRequest(agent="a", episode=2, transitions=path)
    request.next.SetInParent()
    for first, second in ((one, two), (alone, alone)):
        await first.create(max_open_episodes=2)
        await first.start()
        await first.start()
        await second.create(max_open_episodes=2)
        await first.report_episode(1, *path)
        assert (await second.commands.report_episode(request)).next.episode == 3
    assert await two.is_verified()
    assert two.record("a").digest() == alone.record("a").digest()
    assert two.record("a").state.transition_counts.sum() == 6
