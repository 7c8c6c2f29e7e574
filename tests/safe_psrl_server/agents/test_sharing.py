"""Agents of one problem share what is made of it, and long histories are read in large steps: neither changes anything."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server import agent_record, conversion
from safe_psrl_server.agents.definition import completed, definition_of
from safe_psrl_server.agents.folding import folded
from safe_psrl_server.agents.snapshot import snapshot_of

MakeSpec = Callable[..., model_pb2.AgentSpec]


def test_equal_problems_are_made_once(make_spec: MakeSpec) -> None:
    """Seeds differ all the same; other options or another problem are something else."""
    one, two = (definition_of(completed(make_spec(seed=seed), 60.0)) for seed in (1, 2))
    assert one.spec is two.spec
    assert one.learner.problem is two.learner.problem
    assert (one.learner.seed, two.learner.seed) == (1, 2)
    others = (
        make_spec(options=model_pb2.SafePsrlOptions(pessimism_coefficient=0.5)),
        make_spec(horizon=4),
        make_spec(learned=True),
    )
    for other in others:
        assert definition_of(completed(other, 60.0)).learner.problem is not one.learner.problem


def test_what_nobody_shares_any_more_is_let_go(make_spec: MakeSpec) -> None:
    gc.collect()
    before = len(conversion._FAMILIES)
    definition = definition_of(completed(make_spec(horizon=7), 60.0))
    assert len(conversion._FAMILIES) == before + 1
    del definition
    gc.collect()
    assert len(conversion._FAMILIES) == before


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("every", [1, 2, 5])
async def test_a_history_gives_the_same_in_steps_of_any_size(
    bench: Any, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, learned: bool, every: int
) -> None:
    """To the bit: counts, sums of learned signals, dual variables."""
    await bench.commands.create("a", make_spec(learned=learned))
    for episode in range(1, 5):
        await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", state=0))
        for step in range(3):
            moved = control_pb2.Transition(
                state=0, action=step % 2, next_state=0, reward=0.1 * (step + episode), costs=[0.3 / episode, 0.1]
            )
            request = control_pb2.ReportTransitionRequest(agent="a", episode=episode, step=step, transition=moved)
            await bench.commands.report(request, wants_action=False)
    stream = await bench.store.load("a")
    monkeypatch.setattr(agent_record, "SETTLE_AFTER", every)
    again = folded("a", stream)
    assert snapshot_of(again) == snapshot_of(bench.record("a"))
    assert again.digest() == bench.record("a").digest()
