"""Where plans are made: long ones in idle time, and if there is none, all the same."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.problem.presets import preset
from safe_psrl.problem.spec import CmdpSpec, Constraint
from safe_psrl_server import planners
from safe_psrl_server.agents.planner import Planners, TimedPlan, is_short, patience

STATES = 60


@pytest.fixture
def learner() -> SafePsrl:
    """Of a problem whose plans take more than a millisecond or so."""
    table = [[0.5] * 4] * STATES
    constraint = Constraint("cost", table, cost_budget=20.0, satisfiable_cost=15.0)
    return SafePsrl(CmdpSpec(num_states=STATES, num_actions=4, horizon=30, reward=table, constraints=[constraint]))


@pytest.fixture
def threads() -> Iterator[Planners]:
    made = Planners(1)
    yield made
    made.close()


class Starved:
    """In place of planning: the thread that plans in idle time gets none until `fed`."""

    def __init__(self) -> None:
        self.fed = threading.Event()
        self.made_by = list[str]()
        self._plan = planners._plan

    def __call__(self, learner: SafePsrl, state: AgentState) -> TimedPlan:
        name = threading.current_thread().name
        if name.startswith("planner"):
            self.fed.wait(30)
        self.made_by.append(name)
        return self._plan(learner, state)


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starved]:
    found = Starved()
    monkeypatch.setattr(planners, "_plan", found)
    monkeypatch.setattr(planners, "patience", lambda _learner: 0.05)
    yield found
    found.fed.set()


async def test_a_short_plan_is_made_at_once(threads: Planners) -> None:
    learner = SafePsrl(preset("streaming-buffer"))
    assert is_short(learner)
    assert isinstance(threads.plan(learner, learner.initial_state()), TimedPlan)


async def test_a_long_plan_is_made_in_idle_time(threads: Planners, learner: SafePsrl) -> None:
    """By a thread that everybody else goes before. The plan is the one that the library makes."""
    assert not is_short(learner)
    planning = threads.plan(learner, learner.initial_state())
    assert not isinstance(planning, TimedPlan)
    made = (await planning).plan
    assert made.policy.tolist() == learner.start_episode(learner.initial_state())[1].policy.tolist()
    if sys.platform == "linux":
        assert threads._patient.submit(os.sched_getscheduler, 0).result() == os.SCHED_IDLE
        assert threads._urgent.submit(os.sched_getscheduler, 0).result() != os.SCHED_IDLE


async def test_a_plan_without_idle_time_is_made_all_the_same(threads: Planners, learner: SafePsrl, starved: Starved) -> None:
    """On a machine that is always busy: after some patience, by a thread like any other."""
    planning = threads.plan(learner, learner.initial_state())
    assert not isinstance(planning, TimedPlan)
    await planning
    assert [name.partition("_")[0] for name in starved.made_by] == ["urgent-planner"]


async def test_a_plan_that_has_not_begun_is_not_made_twice(threads: Planners, learner: SafePsrl, starved: Starved) -> None:
    """Behind another one that gets no time: it leaves the queue."""
    for _ in range(2):
        planning = threads.plan(learner, learner.initial_state())
        assert not isinstance(planning, TimedPlan)
        await planning
    starved.fed.set()
    threads.close()
    assert sorted(name.partition("_")[0] for name in starved.made_by) == ["planner", "urgent-planner", "urgent-planner"]


def test_patience_grows_with_the_work(learner: SafePsrl) -> None:
    """A plan of seconds is not overdue after one."""
    small = SafePsrl(preset("streaming-buffer"))
    work = STATES * 4 * STATES * 50
    assert patience(learner) == pytest.approx(0.2 + 5 * 0.001 * work / 300_000)
    assert 0.2 < patience(small) < patience(learner)
