"""A continuing task on two replicas: epochs end and begin wherever their last step arrives, once, as on a single host."""

import asyncio
import random
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from safe_psrl import warm_up_continuing
from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message
from tests.safe_psrl_server.bench import Bench, NewBench
from tests.safe_psrl_server.rpc.test_epoch_machine import SPEC

FACTS = attrgetter("episode", "step", "episode_done", "next_episode", "next_step", "action")
MESSAGE = model_pb2.AgentSpec(cmdp=cmdp_to_message(SPEC), seed=3, max_epoch_steps=3)


def part(epoch: int, first: int, moved: control_pb2.Transition) -> control_pb2.ReportEpisodeRequest:
    return control_pb2.ReportEpisodeRequest(agent="a", episode=epoch, first_step=first, transitions=[moved])


@pytest.mark.parametrize("seed", range(2))
async def test_steps_at_any_replica_are_those_of_one_host(new_bench: NewBench, database: str, seed: int) -> None:
    """Steps and parts; some are sent to both replicas at once, of which one is a repetition."""
    warm_up_continuing(["certified"])
    replicas = [await new_bench(database, every_events=20) for _ in range(2)]
    alone, chosen = await new_bench(), random.Random(seed)
    for bench in (replicas[0], alone):
        await bench.administration.create("a", MESSAGE)
    begun = [await bench.started() for bench in (*replicas, alone)]
    assert {(one.episode, one.step, one.action) for one in begun} == {(1, 0, begun[0].action)}
    state, epoch, step, action = 0, 1, 0, begun[0].action
    for _ in range(60):
        moved = control_pb2.Transition(state=state, action=action, next_state=chosen.randrange(3))
        place: dict[str, Any] = {"episode": epoch, "step": step}
        reply = await alone.stepped(moved, **place)
        if chosen.random() < 0.3:
            await chosen.choice(replicas).commands.report_episode(part(epoch, step, moved))
        asked: list[Bench] = replicas if chosen.random() < 0.3 else [chosen.choice(replicas)]
        answers = await asyncio.gather(*(bench.stepped(moved, **place) for bench in asked))
        assert {FACTS(answer) for answer in answers} == {FACTS(reply)}
        state, epoch, step, action = moved.next_state, reply.next_episode, reply.next_step, reply.action
    records = [await bench.agents.record("a") for bench in (*replicas, alone)]
    assert {(record.episode, record.totals.transitions) for record in records} == {(records[0].episode, 60)}
    assert records[0].episode > 15
    assert all(np.array_equal(one.state.transition_counts, records[2].state.transition_counts) for one in records)
