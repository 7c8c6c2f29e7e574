"""Episodes that are open: their time-out, and several at a time."""

import pytest

from safe_psrl_proto.v1 import events_pb2
from safe_psrl_server.errors import (
    FailedPreconditionError,
)
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.specs import transition


async def test_an_inactive_episode_gives_way(bench: Bench) -> None:
    """After the agent's time-out the next start abandons it; what it reported stays."""
    await bench.begin(episode_timeout_seconds=60)
    bench.clock.pass_seconds(59)
    await bench.report(transition(0, 1, 0))
    bench.clock.pass_seconds(59.999999)
    with pytest.raises(FailedPreconditionError, match="episode 1 is open at step 1"):
        await bench.start()
    bench.clock.pass_seconds(0.000001)
    assert (await bench.start()).episode == 2
    record = bench.record("a")
    assert record.episodes[1].end == events_pb2.EPISODE_END_ABANDONED
    assert record.state.transition_counts.sum() == 1


async def test_asking_for_actions_does_not_give_way(bench: Bench) -> None:
    """A bare client goes on with the open episode however long it took; only StartEpisode takes its place."""
    await bench.begin(episode_timeout_seconds=60)
    bench.clock.pass_seconds(1000)
    assert (await bench.act(0)).episode == 1


async def test_the_time_out_is_the_servers_unless_the_agent_has_one(new_bench: NewBench) -> None:
    """The default comes from the limits and is written into the definition, so that a later default changes nothing."""
    bench = await new_bench(episode_timeout_seconds=5)
    await bench.create()
    assert bench.record("a").definition.message.episode_timeout_seconds == 5
    await bench.start()
    bench.clock.pass_seconds(5)
    assert (await bench.start()).episode == 2


async def test_as_many_episodes_as_allowed_may_be_open(bench: Bench) -> None:
    """Each has its own sample and steps; which one is meant must then be said; one more is refused."""
    await bench.create(max_open_episodes=2)
    first, second = await bench.start(), await bench.start()
    assert (first.episode, second.episode) == (1, 2)
    with pytest.raises(FailedPreconditionError) as caught:
        await bench.start()
    assert (caught.value.reason, caught.value.metadata["open_episode"]) == ("EPISODE_OPEN", "1")
    for call in (bench.act(0), bench.report(transition(0, 1, 0))):
        with pytest.raises(FailedPreconditionError) as caught:
            await call
        assert caught.value.reason == "EPISODE_AMBIGUOUS"
    for episode in (2, 1):
        reported = await bench.report(transition(0, 1, 2), episode=episode, step=0)
        assert (reported.episode.number, reported.step) == (episode, 0)
    assert (await bench.act(2, episode=2)).step == 1
    await bench.end(1)
    assert (await bench.act(2)).episode == 2
    assert (await bench.start()).episode == 3


async def test_only_inactive_ones_of_several_give_way(bench: Bench) -> None:
    await bench.begin(max_open_episodes=2, episode_timeout_seconds=60)
    await bench.start()
    bench.clock.pass_seconds(60)
    await bench.report(transition(0, 1, 0), episode=1, step=0)
    assert (await bench.start()).episode == 3
    assert [episode.number for episode in bench.record("a").open_episodes] == [1, 3]


async def test_abandoning_takes_all_that_are_open(bench: Bench) -> None:
    """As an environment wants that was restarted and knows of none."""
    await bench.begin(max_open_episodes=2)
    await bench.start()
    await bench.start(abandon_open=True)
    assert [episode.number for episode in bench.record("a").open_episodes] == [3]
