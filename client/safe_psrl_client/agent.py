"""What plays an environment: a small interface, the same in process and over the network, and its remote side.

agent = RemoteAgent(client, "buffer")          # or LocalAgent(spec) of safe_psrl_testbed.local_agent
action = agent.begin(state)
while action is not None:
    ...
    action = agent.step(state, action, next_state, reward, costs)
agent.finish()
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Literal, Protocol, Self, get_args

from safe_psrl_client.client import Client
from safe_psrl_client.modes import LocalPlay, Play, SteppedPlay, StreamedPlay
from safe_psrl_client.requests import Transition
from safe_psrl_proto.v1 import model_pb2

Mode = Literal["step", "stream", "local"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


class Agent(Protocol):
    """Plays one episode at a time.

    What is impossible under the specification is refused with a ValueError at `step`, or at the latest at `finish`.
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
        """Learn what was seen; the next action, or None when the episode is done.

        `action` is the one that was executed, proposed or not. Reward and costs, from 0 to 1, may be left out where the
        specification knows them. `terminal`: the environment ended the episode with this step.
        """
        ...

    def finish(self) -> None:
        """No more steps: what was seen is learned when this returns. Truncates an episode that is not done."""
        ...

    def abandon(self) -> None:
        """Give the episode up. What was learned of it stays. Never fails."""
        ...


class RemoteAgent:
    """The agent called `name` behind `client`, which the caller keeps and closes. For one thread.

    Modes: `step`, a call a step; `stream`, the same over one stream; `local`, the policy is fetched and played here and the
    whole episode reported by `finish`, so that an episode takes two calls whatever its length.

    In every mode a call that gets no answer is repeated until `client.patience` runs out; all of them carry what the server
    needs to recognise a repetition. So a restart of the server is a pause, and no step is lost or learned twice.
    """

    def __init__(self, client: Client, name: str, mode: Mode = "step", *, abandon_open: bool = False) -> None:
        """abandon_open: an episode that somebody left open makes way. Otherwise `begin` raises `EpisodeOpenError`."""
        plays: dict[str, Callable[[Client, str, bool], Play]] = {
            "step": SteppedPlay,
            "stream": StreamedPlay,
            "local": LocalPlay,
        }
        if mode not in plays:
            raise ValueError(f"mode {mode!r}: must be one of {', '.join(MODES)}")
        self.name = name
        self.mode = mode
        self._play = plays[mode](client, name, abandon_open)

    @property
    def episode(self) -> int:
        """Number of the latest episode; 0 before the first."""
        return self._play.cursor.number if self._play.cursor else 0

    @property
    def policy(self) -> model_pb2.Policy | None:
        """What the latest episode plays; known here in mode `local` only."""
        return self._play.policy

    def begin(self, state: int) -> int:
        return self._play.begin(state)

    def step(
        self,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        terminal: bool = False,
    ) -> int | None:
        return self._play.step(Transition(state, action, next_state, reward, costs, terminal))

    def finish(self) -> None:
        self._play.finish()

    def abandon(self) -> None:
        self._play.abandon()

    def close(self) -> None:
        """Abandon what is open and let go of the stream, if there is one."""
        self._play.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
