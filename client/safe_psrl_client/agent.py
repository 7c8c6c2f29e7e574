"""The agent that plays an environment: one small interface in process and over the network, and its remote implementation.

agent = RemoteAgent(client, "buffer")          # or LocalAgent(spec) of safe_psrl_testbed.local_agent
action = agent.begin(state)
while action is not None:
    ...
    action = agent.step(state, action, next_state, reward, costs)
agent.finish()
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol, Self, get_args

from safe_psrl_client.modes import LocalMode, StepMode, StreamMode
from safe_psrl_client.requests import Transition
from safe_psrl_client.sync.client import Client
from safe_psrl_proto.v1 import model_pb2

Mode = Literal["step", "stream", "local"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


class Agent(Protocol):
    """Plays one episode at a time.

    A transition that the specification excludes raises a ValueError in `step`, or at the latest in `finish`.
    """

    def begin(self, state: int) -> int:
        """Begin an episode in `state`; the first action."""
        ...

    def step(
        self,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        terminal: bool = False,
    ) -> int | None:
        """Learn a transition; returns the next action, or None when the episode is done.

        `action` is the executed one, proposed or not. Reward and costs, from 0 to 1, may be omitted where the
        specification knows them. `terminal`: the environment ended the episode with this step.
        """
        ...

    def finish(self) -> None:
        """End the episode: all its steps are learned when this returns. Truncates an episode that is not done."""
        ...

    def abandon(self) -> None:
        """Give the episode up. Its reported steps stay learned. Never fails."""
        ...


class RemoteAgent:
    """The agent called `name` behind `client`, which the caller keeps and closes. For one thread.

    Modes: `step`, one call per step; `stream`, the same over one stream; `local`, the policy is fetched and played here and
    `finish` reports the whole episode: two calls per episode, whatever its length.

    In every mode a call is retried while the service is unavailable, for up to `client.patience` seconds; the server recognises
    repetitions. So a restart of the server is a pause, and no step is lost or learned twice.
    """

    def __init__(self, client: Client, name: str, mode: Mode = "step", *, abandon_open: bool = False) -> None:
        """abandon_open: `begin` abandons an episode that is still open, instead of raising `EpisodeOpenError`."""
        modes: dict[str, type[StepMode]] = {"step": StepMode, "stream": StreamMode, "local": LocalMode}
        if mode not in modes:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self.name = name
        self.mode = mode
        self._mode = modes[mode](client, name, abandon_open)

    @property
    def episode(self) -> int:
        """Number of the latest episode; 0 before the first."""
        return self._mode.cursor.number if self._mode.cursor else 0

    @property
    def policy(self) -> model_pb2.Policy | None:
        """The policy of the latest episode; known here in mode `local` only."""
        return self._mode.policy

    def begin(self, state: int) -> int:
        return self._mode.begin(state)

    def step(
        self,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        terminal: bool = False,
    ) -> int | None:
        return self._mode.step(Transition(state, action, next_state, reward, costs, terminal))

    def finish(self) -> None:
        self._mode.finish()

    def abandon(self) -> None:
        self._mode.abandon()

    def close(self) -> None:
        """Abandon an open episode and close the stream, if there is one."""
        self._mode.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
