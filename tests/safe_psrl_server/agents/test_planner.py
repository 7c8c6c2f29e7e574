"""Where plans are made: short ones on the event loop, long ones in worker threads."""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any

import pytest

from safe_psrl.arrays import Mask
from safe_psrl.learner import Plan, SafePsrl
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.presets import preset
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.agents import planner
from safe_psrl_server.agents.decisions import Decision, PlanNeeded, TimedPlan
from safe_psrl_server.agents.inbox import Call, Prepared
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.agents.planner import Planner, Threads, is_short
from safe_psrl_server.agents.record import AgentRecord
from tests.safe_psrl_server.bench import NewBench

STATES, HORIZON = 60, 30


def long_problem() -> CmdpSpec:
    """Its plans take several milliseconds."""
    table = [[0.5] * 4] * STATES
    constraint = Constraint("cost", table, cost_budget=20.0, satisfiable_cost=15.0, learned=True)
    return CmdpSpec(num_states=STATES, num_actions=4, horizon=HORIZON, reward=table, constraints=[constraint])


@pytest.fixture
def threads() -> Iterator[Planner]:
    others = Threads()
    made = Planner(1, others)
    yield made
    made.close()
    others.close()


def test_only_short_plans_are_made_on_the_event_loop() -> None:
    assert is_short(SafePsrl(preset("streaming-buffer")))
    assert not is_short(SafePsrl(long_problem()))


async def test_a_plan_of_a_thread_is_the_librarys(threads: Planner) -> None:
    learner = SafePsrl(long_problem())
    plans = list[Plan]()

    def finish(planned: TimedPlan) -> Decision[None]:
        plans.append(planned.plan)
        return Decision([], None)

    def decide(_record: AgentRecord) -> PlanNeeded[None]:
        return PlanNeeded(learner, learner.initial_state(), finish)

    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    prepared = threads.prepare(Call("a", decide, False, future, "owner", copy_context()), AgentRecord("a"))
    assert not isinstance(prepared, Prepared)
    await prepared
    (made,) = plans
    assert made.policy.tolist() == learner.start_episode(learner.initial_state())[1].policy.tolist()


@pytest.fixture
def planned_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that made plans."""
    names, make_plan = list[str](), planner.make_plan

    def observed(needed: PlanNeeded[Any], stop: Mask | None = None) -> TimedPlan:
        names.append(threading.current_thread().name.partition("_")[0])
        return make_plan(needed, stop)

    monkeypatch.setattr(planner, "make_plan", observed)
    return names


async def test_steps_and_trajectories_reach_the_plans_of_worker_threads(new_bench: NewBench, planned_by: list[str]) -> None:
    """Counts have every reported step, and recovery gives the same record."""
    bench = await new_bench()
    await bench.administration.create("a", model_pb2.AgentSpec(cmdp=cmdp_to_message(long_problem())))
    await bench.start()
    path = [
        control_pb2.Transition(state=step, action=step % 4, next_state=step + 1, costs=[0.1 * (step % 7)])
        for step in range(HORIZON)
    ]
    for step in range(5):
        request = control_pb2.StepRequest(agent="a", episode=1, step=step, transition=path[step])
        await bench.commands.report(request, wants_action=False)
    await bench.start(abandon_open=True)
    request = control_pb2.ReportEpisodeRequest(agent="a", episode=2, transitions=path)
    request.next.SetInParent()
    assert (await bench.commands.report_episode(request)).next.episode == 3
    assert planned_by == ["planner"] * 3
    assert bench.record("a").state.transition_counts.sum() == 5 + HORIZON
    assert await bench.is_verified()
