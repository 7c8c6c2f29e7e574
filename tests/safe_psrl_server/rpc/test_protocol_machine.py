"""Any order of calls, repeats, mistakes, races and restarts, against a plain model of what must then be known."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from safe_psrl import DriftOptions, SafePsrl, SafePsrlOptions, Transition, act
from safe_psrl.problem.documents import spec_from_document, spec_to_document
from safe_psrl_proto.v1 import admin_pb2, control_pb2, events_pb2, model_pb2
from safe_psrl_server.errors import AlreadyExistsError, FailedPreconditionError, ServiceError, StepGapError
from tests.safe_psrl_server.bench import Bench
from tests.safe_psrl_server.specs import HORIZON, make_problem, transition

ACTIONS, NEXT_STATES = st.sampled_from([0, 1]), st.sampled_from([0, 2])  # available and possible everywhere
SIGNALS = st.sampled_from([0.0, 0.5, 1.0])


class Move(NamedTuple):
    """A step as it is reported."""

    state: int
    action: int
    next_state: int
    reward: float

    @property
    def message(self) -> control_pb2.Transition:
        return transition(*self[:3], reward=self.reward, costs=[self.reward, 0.5])


class ProtocolMachine(RuleBasedStateMachine):
    """The real host on a real directory, and beside it dictionaries and a pure learner."""

    @initialize(learned=st.booleans(), forgets=st.booleans(), every_events=st.sampled_from([1, 7, 1000]))
    def begin(self, learned: bool, forgets: bool, every_events: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="machine-"))
        self.place = 0
        self.every_events = every_events
        self.runner = asyncio.Runner()
        self.run(self.open)
        settings = {"detect": True, "memory_visits": 2.0, "false_alarm_steps": 1.1, "on_detect": "forget"} if forgets else {}
        self.drift = DriftOptions(**{"detect": True, **settings})
        self.run(lambda: self.bench.create(learned=learned, drift=model_pb2.DriftOptions(**settings)))
        self.learner = SafePsrl(make_problem(learned=learned), SafePsrlOptions("certified"), drift=self.drift)
        self.updates = self.detections = 0
        self.state = self.learner.initial_state()
        self.plan: Any = None
        self.counts: Counter[tuple[int, int, int]] = Counter()
        self.moves: list[Move] = []  # of the latest episode
        self.episode, self.is_open, self.paused = 0, False, False
        self.shadow = self.in_shadow = False  # the agent; the latest episode
        self.completed = self.shadow_completed = 0
        self.request_id = ""

    def teardown(self) -> None:
        self.run(self.bench.close)
        self.runner.close()
        shutil.rmtree(self.directory)

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def in_loop() -> Any:
            return await work()

        return self.runner.run(in_loop())

    async def open(self) -> None:
        self.bench = await Bench(f"sqlite:{self.directory / str(self.place)}", every_events=self.every_events).open()

    def report_call(self, move: Move, step: int, *, wants_action: bool = False) -> Any:
        return self.bench.report(move.message, wants_action=wants_action, episode=self.episode, step=step)

    def refused(self, kind: type[ServiceError], call: Callable[[], Awaitable[Any]]) -> ServiceError:
        with pytest.raises(kind) as caught:
            self.run(call)
        return caught.value

    def has_started(self, number: int) -> None:
        self.state, self.plan = self.learner.start_episode(self.state)
        self.detections += self.plan.drift.detected
        self.episode += 1
        self.moves, self.is_open, self.in_shadow = [], True, self.shadow
        assert number == self.episode

    def has_moved(self, move: Move, step: int) -> None:
        assert step == len(self.moves)
        self.moves.append(move)
        self.counts[move[:3]] += 1
        self.state = self.learner.observe(self.state, Transition(step, *move, (move.reward, 0.5)))
        if len(self.moves) == HORIZON:
            self.is_open = False
            self.completed += not self.in_shadow
            self.shadow_completed += self.in_shadow

    @property
    def here(self) -> int:
        return self.moves[-1].next_state if self.moves else 0

    @rule(abandon=st.booleans(), request_id=st.sampled_from(["", "new"]))
    def start(self, abandon: bool, request_id: str) -> None:
        name = f"{request_id}-{self.episode}" if request_id else ""
        call = partial(self.bench.start, request_id=name, abandon_open=abandon)
        if self.paused or (self.is_open and not abandon):
            error = self.refused(FailedPreconditionError, call)
            assert error.reason == ("AGENT_PAUSED" if self.paused else "EPISODE_OPEN")
            return
        started = self.run(call)
        self.has_started(started.episode)
        self.request_id = name
        assert list(started.policy.actions) == self.plan.policy.ravel().tolist()

    @precondition(lambda self: self.request_id)
    @rule()
    def start_again(self) -> None:
        started = self.run(lambda: self.bench.start(request_id=self.request_id))
        assert started.episode == self.episode
        assert started.shadow == (self.in_shadow or self.shadow)
        assert list(started.policy.actions) == self.plan.policy.ravel().tolist()

    @rule()
    def ask(self) -> None:
        """A bare client: begins an episode if none is open."""
        call = partial(self.bench.act, self.here if self.is_open else 0)
        if self.paused:
            assert self.refused(FailedPreconditionError, call).reason == "AGENT_PAUSED"
            return
        acted = self.run(call)
        if not self.is_open:
            self.request_id = ""
            self.has_started(acted.episode)
        assert (acted.episode, acted.step) == (self.episode, len(self.moves))
        assert acted.action == act(self.plan, acted.step, self.here)
        assert acted.advisory == (self.in_shadow or self.shadow)

    @precondition(lambda self: self.is_open and not self.paused)
    @rule(state=NEXT_STATES, data=st.data())
    def ask_again(self, state: int, data: st.DataObject) -> None:
        """Any step so far, in any state: the action never changes."""
        step = data.draw(st.integers(0, len(self.moves)))
        state = state if step else 0
        acted = self.run(lambda: self.bench.act(state, episode=self.episode, step=step))
        assert acted.action == act(self.plan, step, state)

    @precondition(lambda self: self.is_open)
    @rule(action=ACTIONS, next_state=NEXT_STATES, reward=SIGNALS, wants_action=st.booleans())
    def report(self, action: int, next_state: int, reward: float, wants_action: bool) -> None:
        move, step = Move(self.here, action, next_state, reward), len(self.moves)
        call = partial(self.report_call, move, step, wants_action=wants_action)
        if wants_action and self.paused:
            assert self.refused(FailedPreconditionError, call).reason == "AGENT_PAUSED"
            return
        reported = self.run(call)
        assert (reported.duplicate, reported.done) == (False, step == HORIZON - 1)
        self.has_moved(move, step)

    @precondition(lambda self: self.moves)
    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(0, len(self.moves) - 1))
        reported = self.run(lambda: self.report_call(self.moves[step], step))
        assert reported.duplicate

    @precondition(lambda self: self.moves)
    @rule(data=st.data())
    def report_otherwise(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(0, len(self.moves) - 1))
        move = self.moves[step]
        field = data.draw(st.sampled_from(["action", "next_state", "reward"]))
        other = {"action": 1 - move.action, "next_state": 2 - move.next_state, "reward": move.reward / 2 + 0.1}[field]
        self.refused(AlreadyExistsError, lambda: self.report_call(move._replace(**{field: other}), step))

    @precondition(lambda self: self.is_open and len(self.moves) < HORIZON - 1)
    @rule(data=st.data())
    def report_ahead(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(len(self.moves) + 1, HORIZON - 1))
        error = self.refused(StepGapError, lambda: self.report_call(Move(0, 1, 0, 0.5), step))
        assert error.metadata["expected_step"] == str(len(self.moves))

    @precondition(lambda self: self.episode)
    @rule(more=st.lists(st.tuples(ACTIONS, NEXT_STATES, SIGNALS), max_size=HORIZON), spoiled=st.booleans())
    def report_whole(self, more: list[tuple[int, int, float]], spoiled: bool) -> None:
        """All so far and some more, maybe with a mistake at the end: all of it or nothing."""
        fresh, state = [], self.here
        for action, next_state, reward in more[: HORIZON - len(self.moves)]:
            fresh.append(Move(state, action, next_state, reward))
            state = next_state
        path = [move.message for move in (*self.moves, *fresh)]
        if spoiled and path:
            path[-1].reward = 2.0
        call = partial(self.bench.report_episode, self.episode, *path)
        if (spoiled and path) or (fresh and not self.is_open):
            self.refused(ServiceError, call)
            return
        duplicates, done, _ = self.run(call)
        assert duplicates == len(self.moves)
        for move in fresh:
            self.has_moved(move, len(self.moves))
        assert done == (not self.is_open)

    @precondition(lambda self: self.episode)
    @rule()
    def end(self) -> None:
        ended = self.run(lambda: self.bench.end(self.episode))
        assert not ended.is_open
        assert (ended.end == events_pb2.EPISODE_END_COMPLETED) == (len(self.moves) == HORIZON)
        self.is_open = False

    @precondition(lambda self: self.is_open)
    @rule(action=ACTIONS, next_state=NEXT_STATES)
    def report_twice_at_once(self, action: int, next_state: int) -> None:
        """Two clients with the same news: one is first, the other a duplicate."""
        move, step = Move(self.here, action, next_state, 0.5), len(self.moves)

        async def both() -> list[Any]:
            return await asyncio.gather(self.report_call(move, step), self.report_call(move, step))

        assert sorted(reported.duplicate for reported in self.run(both)) == [False, True]
        self.has_moved(move, step)

    @precondition(lambda self: self.is_open)
    @rule(action=ACTIONS)
    def report_differently_at_once(self, action: int) -> None:
        """Two clients who disagree: one is taken at its word, the other is told."""
        step = len(self.moves)
        moves = [Move(self.here, action, next_state, 1.0) for next_state in (0, 2)]

        async def both() -> list[Any]:
            calls = (self.report_call(move, step) for move in moves)
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = self.run(both)
        (loser,) = (i for i, outcome in enumerate(outcomes) if isinstance(outcome, AlreadyExistsError))
        self.has_moved(moves[1 - loser], step)

    @precondition(lambda self: not self.paused and not self.is_open)
    @rule()
    def start_twice_at_once(self) -> None:
        """A start and a bare client's question: one episode."""
        name = f"race-{self.episode}"

        async def both() -> list[Any]:
            return await asyncio.gather(self.bench.start(request_id=name), self.bench.act())

        started, acted = self.run(both)
        assert started.episode == acted.episode
        self.has_started(started.episode)
        self.request_id = name
        assert acted.action == act(self.plan, 0, 0)

    @rule(budget=st.sampled_from([0.5, 1.0, 1.5]))
    def update(self, budget: float) -> None:
        """From the next episode on; the same budget again changes nothing."""
        request = admin_pb2.UpdateAgentRequest(agent="a", update=model_pb2.AgentSpec(cmdp=model_pb2.CmdpSpec()))
        request.update.cmdp.constraints.add(name="energy", cost_budget=budget)
        request.update_mask.paths.append("cmdp.constraints.energy.cost_budget")
        self.run(lambda: self.bench.administration.update(request))
        document = spec_to_document(self.learner.spec)
        self.updates += document["constraints"][0]["cost_budget"] != budget
        document["constraints"][0]["cost_budget"] = budget
        self.learner = SafePsrl(spec_from_document(document), SafePsrlOptions("certified"), drift=self.drift)

    @rule()
    def promote_or_demote(self) -> None:
        """An episode counts as what it was started as; only a live agent's live episode orders actions."""
        self.shadow = not self.shadow
        mode = model_pb2.AgentSpec(mode="shadow" if self.shadow else "live")
        request = admin_pb2.UpdateAgentRequest(agent="a", update=mode, force=True)
        request.update_mask.paths.append("mode")
        self.run(lambda: self.bench.administration.update(request))
        self.updates += 1

    @rule()
    def pause_or_resume(self) -> None:
        self.paused = not self.paused
        self.run(lambda: self.bench.administration.pause("a", "test") if self.paused else self.bench.administration.resume("a"))

    @rule()
    def restart(self) -> None:
        self.run(self.bench.close)
        self.run(self.open)

    @rule()
    def crash(self) -> None:
        """The files as they lie on the disk at this moment, log and all, are all that the next process has."""

        async def copy() -> None:
            await self.bench.agents.runtime.finish()  # a copy is the image of a crash only while nothing is written
            shutil.copytree(self.directory / str(self.place), self.directory / str(self.place + 1))
            await self.bench.store.close()

        self.run(copy)
        shutil.rmtree(self.directory / str(self.place))
        self.place += 1
        self.run(self.open)

    @invariant()
    def knows_what_the_model_knows(self) -> None:
        """Every acknowledged transition once, no other; the tables of a learner that saw the same."""
        if not hasattr(self, "bench"):
            return
        record = self.run(lambda: self.bench.agents.record("a"))
        settled = self.learner.settle(self.state)
        if self.drift.on_detect == "alert":
            expected = np.zeros_like(settled.transition_counts)
            for place, times in self.counts.items():
                expected[0][place] = times
            assert np.array_equal(settled.transition_counts, expected)
        assert np.array_equal(record.state.dual_variables, settled.dual_variables)
        for ours, theirs in zip(record.state.tables, settled.tables, strict=True):
            assert ours.tobytes() == theirs.tobytes()
        assert record.definition_version == 1 + self.updates
        detections = sum(entry.kind == events_pb2.LOG_KIND_DRIFT_DETECTED for entry in record.log)
        assert detections == self.detections
        assert record.state.episode == self.episode
        assert [episode.number for episode in record.open_episodes] == [self.episode] * self.is_open
        assert (record.paused, record.totals.completed_episodes) == (self.paused, self.completed)
        assert record.totals.transitions == sum(self.counts.values())
        assert record.totals.shadow.completed_episodes == self.shadow_completed


@pytest.mark.parametrize("examples", [30, pytest.param(200, marks=pytest.mark.slow)])
def test_any_order_of_calls(examples: int) -> None:
    """Duplicates, gaps, conflicts, races, restarts and crashes, forty at a time."""
    bounds = settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(ProtocolMachine, settings=bounds)
