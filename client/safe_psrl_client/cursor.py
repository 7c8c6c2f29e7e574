"""The position in an episode: the next request, and what a reply changes. No I/O; all clients and modes share it."""

from safe_psrl_client import requests
from safe_psrl_client.errors import EpisodeClosedError
from safe_psrl_client.requests import Transition
from safe_psrl_proto.v1 import control_pb2


class EpisodeCursor:
    """Its requests carry the episode, the step, and for the start a key: each can be repeated."""

    def __init__(self, agent: str, state: int, *, with_policy: bool = False, abandon_open: bool = False) -> None:
        self.agent = agent
        self.start = requests.start_episode(agent, state, None, with_policy=with_policy, abandon_open=abandon_open)
        self.state = state
        self.number = 0
        self.horizon = 0
        self.step = 0
        self.action: int | None = None
        self.is_open = False

    def started(self, reply: control_pb2.StartEpisodeResponse) -> None:
        self.number, self.horizon, self.action = reply.episode, reply.horizon, reply.action
        self.is_open = True

    def report(self, seen: Transition) -> control_pb2.StepRequest:
        if not self.is_open:
            raise EpisodeClosedError(f"agent {self.agent}: no episode is open; begin one first", "NO_EPISODE")
        return requests.step(self.agent, self.number, self.step, seen)

    def reported(self, seen: Transition, reply: control_pb2.StepResponse) -> int | None:
        """Advance to the state after `seen`; the action to play there, or None at the end."""
        self.state, self.step = seen.next_state, self.step + 1
        self.action = None if reply.episode_done else reply.action
        self.is_open = not reply.episode_done
        return self.action

    def close(self) -> None:
        """Accept no more steps."""
        self.is_open = False
        self.action = None
