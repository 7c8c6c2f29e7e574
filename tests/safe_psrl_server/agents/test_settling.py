"""Transitions enter large tables where the plan is made that needs them: copying a table takes milliseconds."""

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from safe_psrl.learner import AgentState, settle
from safe_psrl.problem.spec import CmdpSpec, Constraint
from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server import agent_record, planners
from safe_psrl_server.agents.conversion import cmdp_to_message
from safe_psrl_server.store.memory import MemoryStore

STATES, HORIZON = 60, 30  # of plans that are made in a thread
Bench = Any  # of conftest


@pytest.fixture
def settled_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that settled something, each time."""
    names = list[str]()

    def noted(spec: CmdpSpec, state: AgentState) -> AgentState:
        if state.pending:
            names.append(threading.current_thread().name.partition("_")[0])
        return settle(spec, state)

    for module in (agent_record, planners):
        monkeypatch.setattr(module, "settle", noted)
    return names


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, no plan is made again because it takes too long in idle time."""
    monkeypatch.setattr(planners, "run_when_idle", lambda: None)
    monkeypatch.setattr(planners, "patience", lambda _learner: 60.0)


@pytest.fixture
async def bench(make_bench: Callable[..., Bench], unhurried: None) -> AsyncIterator[Bench]:  # noqa: ARG001  # before it is made
    """With an agent `a` whose plans are long, in its first episode."""
    table = [[0.5] * 4] * STATES
    constraint = Constraint("cost", table, cost_budget=20.0, satisfiable_cost=15.0, learned=True)
    problem = CmdpSpec(num_states=STATES, num_actions=4, horizon=HORIZON, reward=table, constraints=[constraint])
    made = await make_bench(MemoryStore()).open()
    await made.commands.create("a", model_pb2.AgentSpec(cmdp=cmdp_to_message(problem)))
    await made.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a"))
    yield made
    await made.close()


def move(step: int) -> control_pb2.Transition:
    """From state to state in their order."""
    return control_pb2.Transition(state=step, action=step % 4, next_state=step + 1, costs=[0.1 * (step % 7)])


async def report(bench: Bench, episode: int, steps: range) -> None:
    for step in steps:
        request = control_pb2.StepRequest(agent="a", episode=episode, step=step, transition=move(step))
        await bench.commands.report(request, wants_action=False)


async def check_recovered(bench: Bench, make_bench: Callable[..., Bench]) -> None:
    again = make_bench(bench.store)
    await again.host.recover()
    again.agents.ready = True
    assert again.record("a").digest() == bench.record("a").digest()


async def test_steps_are_settled_by_the_thread_that_plans(
    bench: Bench, make_bench: Callable[..., Bench], settled_by: list[str]
) -> None:
    """Once, and the record has it."""
    for episode in (1, 2, 3):
        await report(bench, episode, range(5))
        await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", abandon_open=True))
        state = bench.record("a").state
        assert state.pending == ()
        assert state.transition_counts.sum() == state.visits.sum() == 5 * episode
    assert settled_by == ["planner"] * 3
    await check_recovered(bench, make_bench)


async def test_a_trajectory_is_settled_by_the_thread_that_plans(
    bench: Bench, make_bench: Callable[..., Bench], settled_by: list[str]
) -> None:
    """With the steps that were reported before it; the next plan is of all of them."""
    await report(bench, 1, range(3))
    path = [move(step) for step in range(HORIZON)]
    request = control_pb2.ReportEpisodeRequest(agent="a", episode=1, transitions=path)
    request.next.SetInParent()
    assert (await bench.commands.report_episode(request)).next.episode == 2
    state = bench.record("a").state
    assert state.pending == ()
    assert state.transition_counts.sum() == HORIZON
    assert settled_by == ["planner"]
    await check_recovered(bench, make_bench)


async def test_steps_that_come_after_a_plan_are_not_lost(bench: Bench, make_bench: Callable[..., Bench]) -> None:
    """A plan's tables are of before them."""
    await report(bench, 1, range(2))
    await bench.commands.start_episode(control_pb2.StartEpisodeRequest(agent="a", abandon_open=True))
    await report(bench, 2, range(4))
    assert bench.record("a").settled_state().transition_counts.sum() == 6
    await check_recovered(bench, make_bench)
