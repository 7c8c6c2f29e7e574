"""Continuing tasks in the service: epochs follow each other in one commit, and are those of the library to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from safe_psrl import CmdpSpec, ContinuingPsrl, DriftOptions, SafePsrlOptions, Transition, preset, warm_up_continuing
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message, unpack
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import TabularEnvironment
from tests.safe_psrl.continuing_cases import continuing_case
from tests.safe_psrl_server.wire import Code, Wire, refusal, serving

SEED = 11


@pytest.fixture(scope="module", autouse=True)
def compiled_epochs() -> None:
    warm_up_continuing()


def agent_spec(spec: CmdpSpec, method: str = "certified", max_epoch_steps: int = 40, **more: Any) -> model_pb2.AgentSpec:
    options = model_pb2.SafePsrlOptions(method=method)
    message = model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), options=options, seed=SEED, **more)
    message.max_epoch_steps = max_epoch_steps
    return message


def moved(state: int, action: int, outcome: Any) -> control_pb2.Transition:
    return control_pb2.Transition(
        state=state, action=action, next_state=outcome.next_state, reward=outcome.reward, costs=outcome.costs
    )


class Twin:
    """A task in the service and in the library, step by step."""

    def __init__(self, spec: CmdpSpec, transitions: Any, method: str, noisy: bool = False) -> None:
        self.environment = TabularEnvironment(spec, transitions, noisy=noisy)
        drift = DriftOptions(detect=True)
        self.learner = ContinuingPsrl(spec, SafePsrlOptions(method), SEED, drift=drift, max_epoch_steps=40)
        self.message = agent_spec(spec, method)
        self.agent, self.state, self.step = self.learner.initial_state(), self.environment.reset(seed=3), 0
        self.place = (0, 0)  # where the service is

    def begin(self, wire: Any) -> None:
        """Start, or find the running task again."""
        reply = wire.start("a", self.state)
        self.place, self.action = (reply.episode, reply.step), reply.action
        assert (reply.state, reply.horizon) == (self.state, 0)

    def advance(self, wire: Any, steps: int) -> None:
        for _ in range(steps):
            if self.agent.epoch_is_over:
                self.agent, self.plan = self.learner.start_epoch(self.agent, self.state)
            assert self.action == self.learner.act(self.plan, self.step, self.state)
            assert self.place == (self.plan.epoch, self.step - self.plan.first_step)
            outcome = self.environment.step(self.action)
            seen = moved(self.state, self.action, outcome)
            reply = wire.step("a", seen, episode=self.place[0], step=self.place[1])
            again = wire.step("a", seen, episode=self.place[0], step=self.place[1])
            assert (again.duplicate, again.action) == (True, reply.action)
            assert (again.next_episode, again.next_step) == (reply.next_episode, reply.next_step)
            observed = Transition(self.step, self.state, self.action, *outcome[:3])
            self.agent = self.learner.observe(self.agent, observed)
            assert reply.episode_done == again.episode_done == self.agent.epoch_is_over
            self.place, self.action = (reply.next_episode, reply.next_step), reply.action
            self.state, self.step = outcome.next_state, self.step + 1

    def finish(self, wire: Any) -> None:
        settled = self.learner.base.settle(self.agent.learned)
        counts = wire.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent="a")).transition_counts
        assert np.array_equal(unpack(counts), settled.transition_counts)
        status = wire.status("a")
        assert [one.dual_variable for one in status.constraints] == settled.dual_variables.tolist() or self.agent.epoch_is_over
        assert (status.transitions, status.overridden_actions) == (self.step, 0)


@pytest.mark.parametrize("method", ["certified", "published"])
def test_steps_are_those_of_the_library(method: str) -> None:
    spec = preset("continuing-buffer")
    twin = Twin(spec, spec.support[0] / spec.support[0].sum(axis=-1, keepdims=True), method)
    with serving() as wire:
        wire.create(twin.message, "a")
        twin.begin(wire)
        twin.advance(wire, 300)
        twin.finish(wire)
    assert twin.plan.epoch > 10


def test_restarts_change_nothing(tmp_path: Path) -> None:
    """Masks; snapshots within epochs; the running task is found again by StartEpisode."""
    twin = Twin(*continuing_case(4, masked=True), "certified")
    for part in range(4):
        settings = {"store": f"sqlite:{tmp_path}", "snapshots": {"every_events": 7 + part}}
        with EmbeddedServer(**settings) as server, Wire(server.target) as wire:
            wire.create(twin.message, "a")
            twin.begin(wire)
            twin.advance(wire, 25)
            twin.finish(wire)
            assert wire.admin.VerifyAgent(admin_pb2.VerifyAgentRequest(agent="a")).ok


def test_totals_count_steps_against_the_budget() -> None:
    """Regret is the sum of costs less the budget of the steps; rates are per step."""
    spec = preset("continuing-buffer")
    environment = TabularEnvironment(spec, spec.support[0] / spec.support[0].sum(axis=-1, keepdims=True))
    with serving() as wire:
        wire.create(agent_spec(spec), "a")
        state, costs, ended = environment.reset(seed=1), list[float](), 0
        action = wire.start("a", state).action
        for _ in range(100):
            outcome = environment.step(action)
            reply = wire.step("a", moved(state, action, outcome))
            costs.append(outcome.costs[0])
            ended = len(costs) if reply.episode_done else ended
            state, action = outcome.next_state, reply.action
        status = wire.status("a").constraints[0]
    tau = float(spec.cost_budgets[0])
    assert status.constraint_regret == pytest.approx(sum(costs[:ended]) - tau * ended)
    assert status.mean_cost == pytest.approx(sum(costs[:ended]) / ended)
    assert 0 <= status.recent_cost <= 1
    assert status.recent_budget == pytest.approx(tau)


def test_agent_and_state_alone_are_enough() -> None:
    spec = preset("continuing-buffer")
    environment = TabularEnvironment(spec, spec.support[0] / spec.support[0].sum(axis=-1, keepdims=True))
    with serving() as wire:
        wire.create(agent_spec(spec), "a")
        state, places = environment.reset(seed=1), []
        for _ in range(60):
            acted = wire.control.GetAction(control_pb2.GetActionRequest(agent="a", state=state))
            places.append((acted.episode, acted.step))
            outcome = environment.step(acted.action)
            report = control_pb2.ReportTransitionRequest(agent="a", transition=moved(state, acted.action, outcome))
            reply = wire.control.ReportTransition(report)
            state = outcome.next_state
            assert (reply.episode, reply.step) == places[-1]
        assert places == sorted(set(places))
        assert (reply.next_episode, reply.next_step) > places[-1]
        assert wire.status("a").transitions == 60


def test_a_reset_environment_begins_anew_by_abandoning() -> None:
    spec = preset("continuing-buffer")
    with serving() as wire:
        wire.create(agent_spec(spec), "a")
        first = wire.start("a", 0)
        refused = refusal(lambda: wire.start("a", 3), Code.INVALID_ARGUMENT, "STATE_MISMATCH", "state")
        assert refused.metadata["expected_state"] == "0"
        again = wire.start("a", 3, abandon_open=True)
        assert (again.episode, again.step, again.state) == (first.episode + 1, 0, 3)
        assert wire.end("a", again.episode).steps == 0
        assert wire.start("a", 5).episode == again.episode + 1


def test_a_paused_agent_begins_no_epoch() -> None:
    """The epoch that ends meanwhile has no successor; resumed, the task goes on from anywhere."""
    spec = preset("continuing-buffer")
    fallback = model_pb2.Policy(horizon=1, num_states=spec.num_states, actions=[0] * spec.num_states)
    with serving() as wire:
        wire.create(agent_spec(spec, fallback_policy=fallback, max_epoch_steps=1), "a")
        action = wire.start("a", 0).action
        wire.admin.PauseAgent(admin_pb2.PauseAgentRequest(agent="a", reason="test"))
        seen = control_pb2.Transition(state=0, action=action, next_state=0)
        replies = [wire.step("a", seen, episode=1, step=0) for _ in range(2)]
        assert [(one.episode_done, one.next_episode, one.HasField("action")) for one in replies] == [(True, 0, False)] * 2
        acted = wire.control.GetAction(control_pb2.GetActionRequest(agent="a", state=1))
        assert (acted.action, acted.fallback, acted.episode) == (0, True, 0)
        wire.admin.ResumeAgent(admin_pb2.ResumeAgentRequest(agent="a"))
        assert wire.control.GetAction(control_pb2.GetActionRequest(agent="a", state=2)).episode == 2


def test_a_guard_pauses_at_the_end_of_an_epoch() -> None:
    spec = preset("continuing-buffer")
    costly = int(np.argmax(spec.signals[1, 0, 0]))
    with serving() as wire:
        wire.create(agent_spec(spec, guard=model_pb2.Guard(max_constraint_regret=0.1), max_epoch_steps=1), "a")
        wire.start("a", 0)
        reply = wire.step("a", control_pb2.Transition(state=0, action=costly, next_state=0), episode=1, step=0)
        assert reply.episode_done
        assert not reply.HasField("action")
        assert wire.status("a").paused_by_guard


def test_budgets_change_with_the_next_epoch() -> None:
    spec = preset("continuing-buffer")
    with serving() as wire:
        message = agent_spec(spec, max_epoch_steps=1)
        wire.create(message, "a")
        action = wire.start("a", 0).action
        message.cmdp.constraints[0].cost_budget = 0.9
        request = admin_pb2.UpdateAgentRequest(agent="a", update=message)
        request.update_mask.paths.append(f"cmdp.constraints.{spec.constraint_names[0]}.cost_budget")
        wire.admin.UpdateAgent(request)
        wire.step("a", control_pb2.Transition(state=0, action=action, next_state=0))
        assert wire.status("a").constraints[0].recent_budget == spec.cost_budgets[0]
        wire.step("a", control_pb2.Transition(state=0, action=action, next_state=0))
        assert wire.status("a").constraints[0].recent_budget == pytest.approx((spec.cost_budgets[0] + 0.9) / 2)


def test_an_export_goes_on_elsewhere() -> None:
    twin = Twin(*continuing_case(2), "certified")
    with serving() as wire:
        wire.create(twin.message, "a")
        twin.begin(wire)
        twin.advance(wire, 33)
        chunks = list(wire.admin.ExportAgent(admin_pb2.ExportAgentRequest(agent="a")))
    with serving() as wire:
        requests = [admin_pb2.ImportAgentRequest(agent="a", chunk=one.chunk, digest=one.digest) for one in chunks]
        wire.admin.ImportAgent(iter(requests))
        twin.begin(wire)
        twin.advance(wire, 33)
        twin.finish(wire)


@pytest.mark.parametrize(("field", "value"), [("max_epoch_steps", 10_001), ("max_open_episodes", 2)])
def test_a_number_that_is_out_of_range_is_in_the_error(wire: Wire, field: str, value: int) -> None:
    message = agent_spec(preset("continuing-buffer"))
    setattr(message, field, value)
    assert refusal(lambda: wire.create(message), field=f"spec.{field}").message.endswith(f", got {value}")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("spec.horizon", lambda spec: setattr(spec.cmdp, "horizon", 3)),
        ("spec.max_epoch_steps", lambda spec: setattr(spec, "max_epoch_steps", 10_001)),
        ("spec.max_open_episodes", lambda spec: setattr(spec, "max_open_episodes", 2)),
        ("spec.constraints[0].cost_budget", lambda spec: setattr(spec.cmdp.constraints[0], "cost_budget", 1.5)),
    ],
)
def test_definitions_that_make_no_sense(wire: Wire, field: str, change: Any) -> None:
    message = agent_spec(preset("continuing-buffer"))
    change(message)
    refusal(lambda: wire.create(message), Code.INVALID_ARGUMENT, field=field)


def test_calls_for_episodes_are_refused(wire: Wire) -> None:
    name = wire.create(agent_spec(preset("continuing-buffer")))
    refusal(lambda: wire.control.StartEpisode(control_pb2.StartEpisodeRequest(agent=name)), field="state")
    wire.start(name, 0)
    ended = control_pb2.Transition(state=0, action=0, next_state=0, terminal=True)
    refusal(lambda: wire.step(name, ended), Code.INVALID_ARGUMENT, field="transition.terminal")
    assert wire.status(name).transitions == 0


@pytest.mark.parametrize("budget", [1.0, 0.01])
def test_one_state_and_one_action(wire: Wire, budget: float) -> None:
    """A budget that is always kept, and one that cannot be."""
    one = model_pb2.Table(shape=[1, 1], values=[0.5])
    constraint = model_pb2.Constraint(name="c", cost=one, cost_budget=budget, satisfiable_cost=0.0)
    cmdp = model_pb2.CmdpSpec(num_states=1, num_actions=1, continuing=True, reward=one, constraints=[constraint])
    name = wire.create(model_pb2.AgentSpec(cmdp=cmdp))
    assert wire.start(name, 0).action == 0
    for _ in range(9):
        reply = wire.step(name, control_pb2.Transition(state=0, action=0, next_state=0))
    assert reply.action == 0
    status = wire.status(name)
    assert status.constraints[0].mean_cost == 0.5
    assert (status.certificate == model_pb2.CERTIFICATE_NONE) == (budget < 0.5)
