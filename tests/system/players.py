"""Clients that keep a ledger: what they played, and what an uninterrupted run of the library would have played."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from safe_psrl import CmdpSpec, Constraint, SafePsrl, SafePsrlOptions, Transition, act
from safe_psrl_proto.v1 import admin_pb2, control_pb2, model_pb2
from safe_psrl_server.agents.messages import cmdp_to_message, unpack
from safe_psrl_testbed import scenario_named
from safe_psrl_testbed.environment import TabularEnvironment
from safe_psrl_testbed.random_cmdp import random_cmdp
from tests.system.server_process import ServerProcess, insist

T = TypeVar("T")
NewEnvironment = Callable[[], TabularEnvironment]
# How a server that has forgotten something answers to what builds on it.
REFUSALS = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.DATA_LOSS,
}


class AcknowledgedLossError(AssertionError):
    """The server does not know any more what it had acknowledged, or knows it twice."""


@dataclass
class Ledger:
    """What was played and learned, counted by the client."""

    counts: NDArray[np.float64]  # [L, S, A, S], acknowledged transitions
    actions: list[int] = field(default_factory=list)  # every action that was played
    dual_variables: list[list[float]] = field(default_factory=list)  # after the start of each episode
    rewards: list[float] = field(default_factory=list)  # of each completed episode
    repeats: int = 0  # calls whose reply was lost, but not their effect

    def enter(self, step: int, state: int, action: int, next_state: int) -> None:
        self.counts[step % len(self.counts), state, action, next_state] += 1


def empty_ledger(spec: CmdpSpec) -> Ledger:
    return Ledger(np.zeros(spec.dirichlet_prior.shape))


class Player:
    """One environment, played by one agent through raw stubs. Every call is repeated until it is acknowledged."""

    def __init__(
        self,
        server: ServerProcess,
        agent: str,
        new_environment: NewEnvironment,
        seed: int = 0,
        acknowledged: Callable[[], None] = lambda: None,
    ) -> None:
        self.server = server
        self.agent = agent
        self.new_environment = new_environment
        self.seed = seed
        self._environment = new_environment()
        self._spec = self._environment.spec
        self._acknowledged = acknowledged
        self.ledger = empty_ledger(self._spec)

    def create(self) -> None:
        definition = model_pb2.AgentSpec(cmdp=cmdp_to_message(self._spec), options=PAPERS, seed=self.seed)
        self.call(self.server.admin.CreateAgent, admin_pb2.CreateAgentRequest(agent=self.agent, spec=definition))

    def play_episode(self) -> None:
        state, number, ledger = self._environment.reset(), len(self.ledger.rewards) + 1, self.ledger
        request = control_pb2.StartEpisodeRequest(agent=self.agent, request_id=f"{self.agent}-{number}", state=state)
        started = self.call(self.server.control.StartEpisode, request)
        self.check(started.episode == number, f"episode {number} was begun as {started.episode}")
        ledger.dual_variables.append(list(started.dual_variables))
        action, reward = started.action, 0.0
        for step in range(self._spec.horizon):
            ledger.actions.append(action)
            seen = self._environment.step(action)
            transition = control_pb2.Transition(
                state=state, action=action, next_state=seen.next_state, reward=seen.reward, costs=seen.costs
            )
            next_action = self.report(number, step, transition)
            ledger.enter(step, state, action, seen.next_state)
            state, action, reward = seen.next_state, next_action, reward + seen.reward
        ledger.rewards.append(reward)

    def report(self, episode: int, step: int, transition: control_pb2.Transition) -> int:
        """Report a step and return the next action, if there is one."""
        request = control_pb2.StepRequest(agent=self.agent, episode=episode, step=step, transition=transition)
        reply = self.call(self.server.control.Step, request)
        self.note(reply, episode, step)
        return reply.action

    def note(self, reply: Any, episode: int, step: int) -> None:
        self.check((reply.episode, reply.step) == (episode, step), "a step was entered elsewhere")
        self.check(reply.episode_done == (step == self._spec.horizon - 1), "an episode ended at the wrong step")
        self.ledger.repeats += reply.duplicate

    def call(self, method: Callable[..., Any], request: Any) -> Any:
        try:
            reply = insist(method, request)
        except grpc.RpcError as error:
            if error.code() not in REFUSALS:
                raise
            raise AcknowledgedLossError(f"{self.agent}: {error.code().name}: {error.details()}") from error
        self._acknowledged()
        return reply

    def check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise AcknowledgedLossError(f"{self.agent}: {otherwise}")


class TwoCallPlayer(Player):
    """The same with ReportTransition and GetAction instead of Step."""

    def report(self, episode: int, step: int, transition: control_pb2.Transition) -> int:
        request = control_pb2.ReportTransitionRequest(agent=self.agent, episode=episode, step=step, transition=transition)
        reply = self.call(self.server.control.ReportTransition, request)
        self.note(reply, episode, step)
        if reply.episode_done:
            return 0
        question = control_pb2.GetActionRequest(agent=self.agent, state=transition.next_state, episode=episode, step=step + 1)
        action: int = self.call(self.server.control.GetAction, question).action
        return action


class LedgerAgent:
    """An agent of the client library, with a ledger of its calls."""

    def __init__(self, agent: Any, spec: CmdpSpec) -> None:
        self.ledger = empty_ledger(spec)
        self._agent = agent
        self._step = 0

    @property
    def advisory(self) -> bool:
        return bool(self._agent.advisory)

    def begin(self, state: int) -> int:
        self._step = 0
        return self._played(self._agent.begin(state))

    def step(
        self,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        terminal: bool = False,
    ) -> int | None:
        next_action = self._agent.step(state, action, next_state, reward, costs, terminal)
        self.ledger.enter(self._step, state, action, next_state)
        self._step += 1
        return None if next_action is None else self._played(next_action)

    def finish(self) -> None:
        self._agent.finish()

    def abandon(self) -> None:
        self._agent.abandon()

    def _played(self, action: int) -> int:
        self.ledger.actions.append(action)
        return action


PAPERS: Final = model_pb2.SafePsrlOptions(method="published")  # its dual variables are state to be lost, too


def uninterrupted(new_environment: NewEnvironment, seed: int, episodes: int) -> Ledger:
    """The ledger of the library on its own, with the same seeds."""
    environment = new_environment()
    ledger, learner = empty_ledger(environment.spec), SafePsrl(environment.spec, SafePsrlOptions("published"), seed)
    memory = learner.initial_state()
    for _ in range(episodes):
        state, reward = environment.reset(), 0.0
        memory, plan = learner.start_episode(memory)
        ledger.dual_variables.append(plan.next_dual_variables.tolist())
        for step in range(environment.spec.horizon):
            action = act(plan, step, state)
            ledger.actions.append(action)
            seen = environment.step(action)
            memory = learner.observe(memory, Transition(step, state, action, seen.next_state, seen.reward, seen.costs))
            state, reward = seen.next_state, reward + seen.reward
        ledger.rewards.append(reward)
    ledger.counts += learner.settle(memory).transition_counts
    return ledger


def check_ledger(server: ServerProcess, agent: str, ledger: Ledger, oracle: Ledger) -> None:
    """Raise `AcknowledgedLossError` unless each acknowledged step is known once and all went as in an uninterrupted run."""
    status = insist(server.admin.GetAgent, admin_pb2.GetAgentRequest(agent=agent)).status
    posterior = insist(server.admin.GetPosterior, admin_pb2.GetPosteriorRequest(agent=agent))
    stored = insist(server.admin.VerifyAgent, admin_pb2.VerifyAgentRequest(agent=agent))
    duals = [constraint.dual_variable for constraint in status.constraints]
    findings = {
        "the posterior is what was acknowledged": np.array_equal(unpack(posterior.transition_counts), ledger.counts),
        "the number of transitions is right": status.transitions == ledger.counts.sum(),
        "the number of episodes is right": status.completed_episodes == status.episode == len(oracle.rewards),
        "the sum of rewards is right": status.cumulative_reward == pytest.approx(sum(oracle.rewards)),
        "the store gives what is served": stored.ok and stored.state_digest == status.state_digest,
        "the counts are an uninterrupted run's": np.array_equal(ledger.counts, oracle.counts),
        "the actions are an uninterrupted run's": ledger.actions == oracle.actions,
        "the dual variables are an uninterrupted run's": duals == (oracle.dual_variables or [[0.0] * len(duals)])[-1],
        "so they were all the time": ledger.dual_variables in ([], oracle.dual_variables),
    }
    wrong = [finding for finding, holds in findings.items() if not holds]
    if wrong:
        raise AcknowledgedLossError(f"{agent}: it is not so that {', that '.join(wrong)}")


def check_player(player: Player) -> None:
    oracle = uninterrupted(player.new_environment, player.seed, len(player.ledger.rewards))
    check_ledger(player.server, player.agent, player.ledger, oracle)


@contextmanager
def in_threads(play: Callable[[T], None], players: Iterable[T], stop: Callable[[], None]) -> Iterator[None]:
    """Call `play` for each player in a thread of its own; at the end of the block `stop`, after which each must return."""
    threads = [threading.Thread(target=play, args=(player,), daemon=True) for player in players]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()


def streaming_buffer() -> TabularEnvironment:
    return scenario_named("streaming-buffer").environment()


def learned_signals() -> TabularEnvironment:
    """Two constraints; the reward and one of the costs must be learned from noise."""
    chosen = np.random.default_rng(3)
    states, actions, horizon = 5, 3, 7
    spec = CmdpSpec(
        num_states=states,
        num_actions=actions,
        horizon=horizon,
        reward=chosen.random((states, actions)),
        reward_learned=True,
        constraints=[
            Constraint("known", chosen.random((states, actions)), 4.0, 3.0),
            Constraint("learned", chosen.random((states, actions)), 5.0, 4.0, learned=True),
        ],
    )
    return TabularEnvironment(spec, chosen.dirichlet(np.ones(states), size=(states, actions)), noisy=True)


def large_policy() -> TabularEnvironment:
    """Few steps in many states: policies of 7,500 entries, which are stored apart."""
    return TabularEnvironment(*random_cmdp(250, 2, 30, seed=4))


def thinker(num_states: int, num_actions: int, horizon: int, draws: int) -> model_pb2.AgentSpec:
    """An agent whose plans take `draws` kernels each, as none can satisfy its constraint."""
    everywhere = np.ones((num_states, num_actions))
    spec = CmdpSpec(
        num_states=num_states,
        num_actions=num_actions,
        horizon=horizon,
        reward=everywhere,
        constraints=[Constraint("toll", everywhere, horizon / 2, 0.0)],
    )
    return model_pb2.AgentSpec(
        cmdp=cmdp_to_message(spec), options=model_pb2.SafePsrlOptions(method="published", max_kernel_draws=draws)
    )
