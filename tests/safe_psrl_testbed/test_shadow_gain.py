"""What a shadow agent is predicted to gain, beside what it gains once it is promoted, through a service."""

from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple

import pytest

from safe_psrl.problem.documents import spec_to_document
from safe_psrl_client import Client, RemoteAgent, play, spec_from_document
from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_testbed import Scenario

EPISODES = 500  # in shadow, and as many live
SEEDS = range(1, 21)
MOST_MISSES = 2


class Incumbent(NamedTuple):
    """A rule, fast (0) or slow (1) for a step and a state, and in how many seeds at least the agent may replace it."""

    rule: Callable[[int, int], int]
    promotable: int


INCUMBENTS = {
    "fast-at-first": Incumbent(lambda step, _: int(step >= 5), 15),
    "every-second-fast": Incumbent(lambda step, _: step % 2, 20),
    "every-third-fast": Incumbent(lambda step, _: int(step % 3 > 0), 20),
    # above the budget, and never slow where it matters
    "fast-below-half": Incumbent(lambda _, state: int(state >= 5), 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INCUMBENTS)
def test_the_interval_of_the_predicted_gain_covers_the_realised_gain(buffer: Scenario, client: Client, name: str) -> None:
    incumbent, misses, promotable = INCUMBENTS[name], [], 0
    for seed in SEEDS:
        agent_name, spec = f"gain-{name}-{seed}", spec_from_document(spec_to_document(buffer.spec))
        spec.mode, spec.seed = "shadow", seed
        client.create_agent(agent_name, spec)
        world, agent = buffer.environment(seed), RemoteAgent(client, agent_name, "local")
        before = fmean(one.reward for one in play(world, agent, EPISODES, incumbent=incumbent.rule))
        predicted = client.compare_agent(agent_name)
        promotable += predicted.verdict == admin_pb2.PROMOTION_VERDICT_PROMOTE
        client.promote(agent_name, force=True)
        realised = fmean(one.reward for one in play(world, agent, EPISODES)) - before
        if abs(realised - predicted.gain.mean) > predicted.deviations * predicted.gain.error:
            misses.append((seed, realised, predicted.gain.mean, predicted.gain.error))
    assert len(misses) <= MOST_MISSES, misses
    assert promotable >= incumbent.promotable if incumbent.promotable else promotable == 0
