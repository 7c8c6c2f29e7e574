"""Clients that play, each with its own agent and seed, and record every attempt.

A call whose outcome is unknown is made again with the same keys, until it is acknowledged. Beside that they repeat calls
that were acknowledged, and make mistakes on purpose: other values under the same key, and steps that come too early.
"""

import random
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc
from tests.faults.history import ERROR, OK, UNKNOWN, Entry, brief
from tests.faults.traffic import STUCK_SECONDS, Traffic
from tests.faults.worlds import World
from tests.system.server_process import CHANNEL

RETRY_SECONDS: Final = 0.05  # until an unknown call is made again
PAUSE_SECONDS: Final = 0.002  # between calls: the faults matter here, not the rate
OWN_CONNECTION: Final = (*CHANNEL, ("grpc.use_local_subchannel_pool", 1))


class Client(threading.Thread):
    """A thread that plays episode after episode by `play_episode` until it is stopped, with an agent of its own."""

    def __init__(self, traffic: Traffic, agent: str, seed: int, *, learned: bool) -> None:
        super().__init__(name=agent, daemon=True)
        self.agent = agent
        self.traffic = traffic
        self.chosen = random.Random(f"{seed} {agent}")
        self.world = World(self.chosen.randrange(2**32), learned=learned)
        self.episodes = 0
        self._seed = seed
        self._channels = [grpc.insecure_channel(target, OWN_CONNECTION) for target in traffic.targets]
        self._routes = random.Random(f"{seed} {agent} routes")

    def run(self) -> None:
        try:
            self.create()
            while not self.traffic.stopping.is_set():
                self.play_episode()
                self.episodes += 1
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            self.traffic.failed(error)
        finally:
            for channel in self._channels:
                channel.close()

    def create(self) -> None:
        self.call("CreateAgent", admin_pb2.CreateAgentRequest(agent=self.agent, spec=self.world.spec(self._seed)))

    def play_episode(self) -> None:
        raise NotImplementedError

    # --- calling

    def call(self, call: str, request: Any, expected: str = "OK") -> Any:
        """The reply, after as many attempts as it takes; None if the call was refused as expected."""
        until = time.monotonic() + STUCK_SECONDS
        while True:
            entry = self.attempt(call, request, expected)
            if entry.outcome == OK and expected == "OK":
                self.traffic.acknowledged(self.agent, entry.begin)
                return entry.reply
            if entry.outcome != UNKNOWN:
                if entry.code != expected:
                    raise AssertionError(f"{self.agent}: {call} gave {entry.code} instead of {expected}: {brief(request)}")
                return None
            if self.traffic.failure is not None or time.monotonic() > until:
                raise AssertionError(f"{self.agent}: {call} is not acknowledged: {entry.code}")
            time.sleep(RETRY_SECONDS)

    def attempt(self, call: str, request: Any, expected: str = "OK") -> Entry:
        begin, code, reply = time.monotonic(), "OK", None
        try:
            with self.traffic.turn():
                begin = time.monotonic()
                reply = getattr(self._stub(call), call)(request, timeout=self.traffic.patience, wait_for_ready=True)
        except grpc.RpcError as error:
            code = error.code().name
        entry = self.entry(call, request, begin, code, reply, expected)
        self.traffic.history.record(entry)
        time.sleep(PAUSE_SECONDS)
        return entry

    def entry(self, call: str, request: Any, begin: float, code: str, reply: Any, expected: str = "OK") -> Entry:
        outcome = OK if code == "OK" else UNKNOWN if code in self.traffic.uncertain else ERROR
        return Entry(self.agent, call, request, begin, time.monotonic(), outcome, code, reply, expected)

    def _stub(self, call: str) -> Any:
        channel = self._routes.choice(self._channels)
        if hasattr(admin_pb2_grpc.AdminServiceServicer, call):
            return admin_pb2_grpc.AdminServiceStub(channel)
        return control_pb2_grpc.ControlServiceStub(channel)

    # --- what all of them do

    def start_request(self, *, with_policy: bool) -> control_pb2.StartEpisodeRequest:
        key = f"{self.agent}-{self.episodes}"
        return control_pb2.StartEpisodeRequest(agent=self.agent, request_id=key, state=0, with_policy=with_policy)

    def trajectory(self, policy: Any) -> list[control_pb2.Transition]:
        """An episode played by `policy`."""
        state, transitions = 0, []
        for step in range(self.world.horizon):
            transitions.append(self.world.step(self.chosen, state, policy.actions[step * policy.num_states + state]))
            state = transitions[-1].next_state
        return transitions

    def sometimes(self, probability: float) -> bool:
        return self.chosen.random() < probability


class StepClient(Client):
    """StartEpisode and Step. Sometimes it plays another action, breaks an episode off, or changes the budget."""

    def play_episode(self) -> None:
        if self.sometimes(0.2):
            self.update_budget()
        started = self.call("StartEpisode", self.start_request(with_policy=False))
        state, action, end = 0, started.action, self.world.horizon
        if self.sometimes(0.15):
            end = self.chosen.randrange(self.world.horizon)
        for number in range(end):
            if self.sometimes(0.1):
                action = self.chosen.randrange(self.world.num_actions)
            seen = self.world.step(self.chosen, state, action)
            request = control_pb2.StepRequest(agent=self.agent, episode=started.episode, step=number, transition=seen)
            action, state = self.call("Step", request).action, seen.next_state
            self.doubt(request, "Step")
        if end < self.world.horizon:
            self.call("EndEpisode", control_pb2.EndEpisodeRequest(agent=self.agent, episode=started.episode))

    def update_budget(self) -> None:
        """Of the first constraint; sometimes twice, and sometimes to what it is."""
        request = admin_pb2.UpdateAgentRequest(agent=self.agent, update=self.world.spec(0), reason="test")
        constraint = request.update.cmdp.constraints[0]
        constraint.cost_budget = self.world.horizon * self.chosen.choice((0.2, 0.25, 0.3))
        request.update_mask.paths.append(f"cmdp.constraints.{constraint.name}.cost_budget")
        for _ in range(1 + self.sometimes(0.2)):
            self.call("UpdateAgent", request)

    def doubt(self, request: Any, call: str) -> None:
        """Repetitions and mistakes, now and then, and in the first episode for certain."""
        surely = request.step if self.episodes == 0 else None
        if self.sometimes(0.15) or surely == 0:
            self.call(call, request)
        if self.sometimes(0.05) or surely == 1:
            other = type(request)()
            other.CopyFrom(request)
            other.transition.reward = 0.125 if request.transition.reward != 0.125 else 0.25
            self.call(call, other, expected="ALREADY_EXISTS")
        if (self.sometimes(0.05) or surely == 2) and request.step + 2 < self.world.horizon:
            early = type(request)()
            early.CopyFrom(request)
            early.step += 2
            self.call(call, early, expected="OUT_OF_RANGE")


class TwoCallClient(StepClient):
    """GetAction and ReportTransition, and nothing to begin an episode with: the first question does."""

    def play_episode(self) -> None:
        state = 0
        asked = self.call("GetAction", control_pb2.GetActionRequest(agent=self.agent, state=state))
        for number in range(self.world.horizon):
            seen = self.world.step(self.chosen, state, asked.action)
            where = {"agent": self.agent, "episode": asked.episode, "step": number}
            request = control_pb2.ReportTransitionRequest(**where, transition=seen)
            reply = self.call("ReportTransition", request)
            self.doubt(request, "ReportTransition")
            state = seen.next_state
            if not reply.episode_done:
                question = control_pb2.GetActionRequest(agent=self.agent, state=state, episode=asked.episode, step=number + 1)
                asked = self.call("GetAction", question)


class EpisodeClient(Client):
    """Plays the policy itself and reports whole episodes; sometimes a part of one first, or all of it twice."""

    def play_episode(self) -> None:
        started = self.call("StartEpisode", self.start_request(with_policy=True))
        transitions = self.trajectory(started.policy)
        if self.sometimes(0.3):
            self._report(started.episode, transitions[: self.chosen.randrange(1, len(transitions))])
        for _ in range(1 + self.sometimes(0.2)):
            self._report(started.episode, transitions)

    def _report(self, episode: int, transitions: Sequence[control_pb2.Transition]) -> None:
        request = control_pb2.ReportEpisodeRequest(agent=self.agent, episode=episode, transitions=transitions)
        self.call("ReportEpisode", request)


class StreamClient(Client):
    """StepStream: all steps of an episode at once, some of them twice. What a broken stream left open is sent again."""

    def play_episode(self) -> None:
        (started,) = self.exchange([("StartEpisode", self.start_request(with_policy=True))])
        steps = [
            control_pb2.StepRequest(agent=self.agent, episode=started.episode, step=number, transition=transition)
            for number, transition in enumerate(self.trajectory(started.policy))
        ]
        self.exchange([("Step", step) for step in steps for _ in range(1 + self.sometimes(0.15))])

    def exchange(self, calls: Sequence[tuple[str, Any]]) -> list[Any]:
        """The replies to all of `calls`, which are made in this order."""
        replies: list[Any] = []
        until = time.monotonic() + STUCK_SECONDS
        while len(replies) < len(calls):
            with self.traffic.turn():
                replies += self._stream(calls[len(replies) :])
            if len(replies) < len(calls) and (self.traffic.failure is not None or time.monotonic() > until):
                raise AssertionError(f"{self.agent}: a stream is not acknowledged")
        return replies

    def _stream(self, calls: Sequence[tuple[str, Any]]) -> list[Any]:
        """The replies to the first of `calls`, as far as they came on one stream."""
        fields = {"StartEpisode": "start_episode", "Step": "step"}
        messages = [control_pb2.StepStreamRequest(tag=i, **{fields[call]: request}) for i, (call, request) in enumerate(calls)]
        replies: list[Any] = []
        broken, begin = "CANCELLED", time.monotonic()
        stream = self._stub("StepStream").StepStream(iter(messages), timeout=self.traffic.patience, wait_for_ready=True)
        try:
            for reply in stream:
                if (refused := self._take(reply, calls, replies, begin)) is not None:
                    stream.cancel()
                    broken = refused
                    break
        except grpc.RpcError as error:
            broken = error.code().name
        for call, request in calls[len(replies) :]:
            self.traffic.history.record(self.entry(call, request, begin, broken, None))
        if len(replies) < len(calls):
            if broken not in self.traffic.uncertain:
                raise AssertionError(f"{self.agent}: a stream ended with {broken}: {brief(calls[len(replies)][1])}")
            time.sleep(RETRY_SECONDS)
        return replies

    def _take(self, reply: Any, calls: Sequence[tuple[str, Any]], replies: list[Any], begin: float) -> str | None:
        """Enter one reply. The status with which its message was refused, if it was."""
        call, request = calls[len(replies)]
        outcome = reply.WhichOneof("outcome")
        if reply.tag != len(replies):
            raise AssertionError(f"{self.agent}: the reply to message {len(replies)} of a stream is that to {reply.tag}")
        if outcome == "error":
            return str(next(code.name for code in grpc.StatusCode if code.value[0] == reply.error.code))
        replies.append(getattr(reply, outcome))
        self.traffic.history.record(self.entry(call, request, begin, "OK", replies[-1]))
        self.traffic.acknowledged(self.agent, begin)
        return None


class Observer(Client):
    """Asks for the status of every agent, over and over: what it sees may only move on."""

    def __init__(self, traffic: Traffic, agents: Sequence[str], seed: int) -> None:
        super().__init__(traffic, "observer", seed, learned=False)
        self._agents = agents

    def create(self) -> None:
        """It has no agent of its own."""

    def play_episode(self) -> None:
        for agent in self._agents:
            self.attempt("GetAgent", admin_pb2.GetAgentRequest(agent=agent))
        self.traffic.stopping.wait(0.05)


class Load:
    """Four players of all kinds, or a single one, and an observer."""

    def __init__(self, traffic: Traffic, seed: int, *, single_client: bool = False) -> None:
        players = [
            StepClient(traffic, "step", seed, learned=True),
            TwoCallClient(traffic, "twocall", seed, learned=False),
            StreamClient(traffic, "stream", seed, learned=False),
            EpisodeClient(traffic, "episode", seed, learned=True),
        ]
        self.traffic = traffic
        self.players = players[:1] if single_client else players
        self.agents = [player.agent for player in self.players]
        self._observer = Observer(traffic, self.agents, seed)

    def begin(self) -> None:
        for player in self.players:
            player.start()
        self.wait_for_calls(5)
        self._observer.start()

    def wait_for_calls(self, more: int) -> None:
        self.traffic.wait_for_calls(self.agents, more)

    def wait_for_recovery(self, moment: float) -> None:
        self.traffic.wait_for_calls_after(self.agents, moment)

    def end(self) -> None:
        """Let every player finish its episode."""
        self.traffic.stopping.set()
        for thread in (*self.players, self._observer):
            if thread.ident is not None:
                thread.join(STUCK_SECONDS + 30)
                if thread.is_alive():
                    raise AssertionError(f"{thread.name} does not come to an end")
        if self.traffic.failure is not None:
            raise self.traffic.failure
