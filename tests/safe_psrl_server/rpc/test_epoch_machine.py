"""Any order of calls, repeats, mistakes, pauses and restarts across the epochs of a continuing task, against the library."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from safe_psrl import CmdpSpec, Constraint, ContinuingPsrl, DriftOptions, SafePsrlOptions, Transition, warm_up_continuing
from safe_psrl_proto.v1 import control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.errors import AlreadyExistsError, FailedPreconditionError, ServiceError, StepGapError
from tests.safe_psrl_server.bench import Bench

MAX_EPOCH_STEPS = 4
STATES, ACTIONS = st.integers(0, 2), st.integers(0, 1)
STEPS = st.lists(st.tuples(ACTIONS, STATES), min_size=1, max_size=3)
SPEC = CmdpSpec(
    num_states=3,
    num_actions=2,
    horizon="continuing",
    reward=[[0.0, 0.5], [0.2, 0.7], [0.4, 1.0]],
    constraints=[Constraint("c", [[0.0, 1.0]] * 3, 0.5, 0.1)],
)


class EpochMachine(RuleBasedStateMachine):
    """The real host on a real directory, and beside it the library."""

    @initialize(every_events=st.sampled_from([1, 5, 1000]))
    def begin(self, every_events: int) -> None:
        self.directory, self.place, self.every_events = Path(tempfile.mkdtemp(prefix="epochs-")), 0, every_events
        self.runner = asyncio.Runner()
        self.run(self.open)
        message = model_pb2.AgentSpec(cmdp=cmdp_to_message(SPEC), seed=3, max_epoch_steps=MAX_EPOCH_STEPS)
        self.run(lambda: self.bench.administration.create("a", message))
        drift = DriftOptions(detect=True)
        self.learner = ContinuingPsrl(SPEC, SafePsrlOptions("certified"), 3, drift=drift, max_epoch_steps=MAX_EPOCH_STEPS)
        self.state, self.where, self.paused, self.epoch_is_open = self.learner.initial_state(), 0, False, False
        self.visits = Counter[tuple[int, int]]()  # in this epoch
        self.latest: Any = None  # the call that was made last, and its answer

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def in_loop() -> Any:
            return await work()

        return self.runner.run(in_loop())

    async def open(self) -> None:
        self.bench = await Bench(f"sqlite:{self.directory / str(self.place)}", every_events=self.every_events).open()

    @property
    def step(self) -> int:
        """The next one of the epoch."""
        return sum(self.visits.values())

    def begin_epoch(self, start: int) -> None:
        self.state, self.plan = self.learner.start_epoch(self.state, start)
        self.where, self.visits, self.epoch_is_open = start, Counter(), True

    def moved(self, steps: list[tuple[int, int]]) -> list[control_pb2.Transition]:
        """The messages of actions and next states from where the task is."""
        places = [self.where, *(after for _, after in steps)]
        return [
            control_pb2.Transition(state=place, action=action, next_state=after)
            for place, (action, after) in zip(places, steps, strict=False)
        ]

    def learn(self, steps: list[tuple[int, int]]) -> None:
        before, over = self.plan_counts(), False
        for action, after in steps:
            self.visits[self.where, action] += 1
            over = over or self.visits[self.where, action] >= max(1.0, before[self.where, action])
            seen = Transition(self.state.step, self.where, action, after, *self.signals(self.where, action))
            self.state = self.learner.observe(self.state, seen)
            self.where = after
        if over or self.step >= MAX_EPOCH_STEPS:
            self.epoch_is_open = False
            if not self.paused:
                self.begin_epoch(self.where)

    def plan_counts(self) -> Any:
        return self.state.learned.transition_counts[0].sum(axis=-1)

    def signals(self, state: int, action: int) -> tuple[float, tuple[float, ...]]:
        return float(SPEC.signals[0, 0, state, action]), (float(SPEC.signals[1, 0, state, action]),)

    def refused(self, kind: type[ServiceError], call: Callable[[], Awaitable[Any]]) -> ServiceError:
        with pytest.raises(kind) as caught:
            self.run(call)
        return caught.value

    def part(self, steps: list[tuple[int, int]], first: int, epoch: int) -> Callable[[], Awaitable[Any]]:
        request = control_pb2.ReportEpisodeRequest(agent="a", episode=epoch, first_step=first, transitions=self.moved(steps))
        return lambda: self.bench.commands.report_episode(request)

    @precondition(lambda self: not self.epoch_is_open and not self.paused)
    @rule(start=STATES)
    def start(self, start: int) -> None:
        begun = self.run(lambda: self.bench.start(state=start))
        self.begin_epoch(start)
        assert begun.episode == self.plan.epoch
        self.latest = None

    @precondition(lambda self: self.epoch_is_open and not self.paused)
    @rule(start=STATES)
    def start_after_a_reset(self, start: int) -> None:
        self.run(lambda: self.bench.start(state=start, abandon_open=True))
        self.begin_epoch(start)
        self.latest = None

    @precondition(lambda self: self.epoch_is_open and not self.paused)
    @rule(move=st.tuples(ACTIONS, STATES), proposed=st.booleans())
    def take_a_step(self, move: tuple[int, int], proposed: bool) -> None:
        action = self.learner.act(self.plan, self.state.step, self.where) if proposed else move[0]
        steps, place = [(action, move[1])], {"episode": self.plan.epoch, "step": self.step}
        message = self.moved(steps)[0]
        reply = self.run(lambda: self.bench.stepped(message, **place))
        self.learn(steps)
        assert (reply.next_episode, reply.next_step) == (self.plan.epoch, self.step)
        assert reply.action == self.learner.act(self.plan, self.state.step, self.where)
        self.latest = lambda: self.bench.stepped(message, **place), reply

    @precondition(lambda self: self.epoch_is_open)
    @rule(steps=STEPS)
    def report_a_part(self, steps: list[tuple[int, int]]) -> None:
        """Played without the server; in a pause, too."""
        call, epoch = self.part(steps, self.step, self.plan.epoch), self.plan.epoch
        reported = self.run(call)
        self.learn(steps)
        assert reported.done == (self.plan.epoch != epoch or not self.epoch_is_open)
        self.latest = None

    @precondition(lambda self: self.latest is not None and not self.paused)
    @rule()
    def repeat(self) -> None:
        call, reply = self.latest
        again = self.run(call)
        assert again.duplicate
        again.duplicate = False
        assert again == reply

    @precondition(lambda self: self.epoch_is_open and self.step > 0)
    @rule()
    def contradict(self) -> None:
        """The last step of the epoch with another next state; nothing changes."""
        seen = self.bench.record().open_episodes[0].transitions[-1]
        other = control_pb2.Transition(state=seen.state, action=seen.action, next_state=(seen.next_state + 1) % 3)
        place = {"episode": self.plan.epoch, "step": self.step - 1}
        self.refused(AlreadyExistsError, lambda: self.bench.report(other, **place))

    @precondition(lambda self: self.epoch_is_open)
    @rule()
    def leave_a_gap(self) -> None:
        self.refused(StepGapError, self.part([(0, 0)], self.step + 1, self.plan.epoch))

    @precondition(lambda self: not self.paused)
    @rule()
    def pause(self) -> None:
        self.run(lambda: self.bench.administration.pause("a", "test"))
        self.paused = True

    @precondition(lambda self: self.paused)
    @rule()
    def resume(self) -> None:
        self.refused(FailedPreconditionError, lambda: self.bench.started(state=self.where))
        self.run(lambda: self.bench.administration.resume("a"))
        self.paused = False

    @rule()
    def restart(self) -> None:
        self.run(self.bench.close)
        self.run(self.open)
        self.run(lambda: self.bench.agents.record("a"))

    @rule()
    def crash(self) -> None:
        """The files as they lie on the disk at this moment are all that the next process has."""

        async def copy() -> None:
            await self.bench.agents.runtime.finish()
            shutil.copytree(self.directory / str(self.place), self.directory / str(self.place + 1))
            await self.bench.close()

        self.run(copy)
        self.place += 1
        self.run(self.open)
        self.run(lambda: self.bench.agents.record("a"))

    @invariant()
    def what_is_known_is_what_the_library_knows(self) -> None:
        record, settled = self.bench.record(), self.learner.base.settle(self.state.learned)
        assert np.array_equal(record.state.transition_counts, settled.transition_counts)
        assert np.array_equal(record.state.drift_statistics, settled.drift_statistics)
        assert (record.totals.transitions, record.episode) == (self.state.step, settled.episode)
        assert bool(record.open_episodes) == self.epoch_is_open
        if self.epoch_is_open:
            epoch = record.open_episodes[0]
            assert (epoch.number, epoch.next_step) == (self.plan.epoch, self.step)
            assert np.array_equal(epoch.policy, self.plan.probabilities)
            assert epoch.started.first_step == self.plan.first_step

    def teardown(self) -> None:
        self.run(self.bench.close)
        self.runner.close()
        shutil.rmtree(self.directory)


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.slow)])
def test_any_order_of_calls(examples: int) -> None:
    """Forty calls at a time, of which many cross the end of an epoch."""
    warm_up_continuing(["certified"])
    bounds = settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(EpochMachine, settings=bounds)
