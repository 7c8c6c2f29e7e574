"""The agent in the environment's process, without a network: the same interface as `safe_psrl_client.RemoteAgent`."""

from collections.abc import Sequence

from safe_psrl.errors import TransitionError
from safe_psrl.learner import AgentState, Plan, SafePsrl, act
from safe_psrl.problem.options import CERTIFIED, DriftOptions, SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl.transition import Transition
from safe_psrl_client.errors import EpisodeClosedError, EpisodeOpenError


class LocalAgent:
    """An agent for `spec`, learning as it is stepped. The same seed and observations give the same actions.

    Without `options` it has the service's default method, `certified`.
    """

    def __init__(
        self, spec: CmdpSpec, options: SafePsrlOptions | None = None, seed: int = 0, drift: DriftOptions | None = None
    ) -> None:
        self._learner = SafePsrl(spec, options or SafePsrlOptions(CERTIFIED), seed, drift=drift)
        self._state = self._learner.initial_state()
        self._plan: Plan | None = None
        self._step = 0
        self._expected: int | None = None  # the state that the next step begins in, while an episode is open

    @property
    def state(self) -> AgentState:
        return self._learner.settle(self._state)

    @property
    def plan(self) -> Plan | None:
        return self._plan

    @property
    def advisory(self) -> bool:
        return False

    @property
    def episode(self) -> int:
        """Number of the latest episode; 0 before the first."""
        return self._state.episode

    def begin(self, state: int) -> int:
        spec = self._learner.spec
        if self._expected is not None:
            raise EpisodeOpenError(f"episode {self.episode} is open at step {self._step}; finish or abandon it", "EPISODE_OPEN")
        if not 0 <= state < spec.num_states or spec.initial_distribution[state] == 0:
            raise TransitionError("state", state, "is not one that episodes begin in")
        self._state, self._plan = self._learner.start_episode(self._state)
        self._step, self._expected = 0, state
        return act(self._plan, 0, state)

    def step(
        self,
        state: int,
        action: int,
        next_state: int,
        reward: float | None = None,
        costs: Sequence[float] = (),
        terminal: bool = False,
    ) -> int | None:
        if self._expected is None or self._plan is None:
            raise EpisodeClosedError("no episode is open; begin one first", "NO_EPISODE")
        if state != self._expected:
            raise TransitionError("state", state, f"must be {self._expected}, the previous step's next state")
        bare = Transition(self._step, state, action, next_state)
        self._state = self._learner.observe(self._state, self._with_signals(bare, reward, costs))
        self._step += 1
        if terminal or self._step == self._learner.spec.horizon:
            self._expected = None
            return None
        self._expected = next_state
        return act(self._plan, self._step, next_state)

    def finish(self) -> None:
        self._expected = None

    abandon = finish

    def _with_signals(self, bare: Transition, reward: float | None, costs: Sequence[float]) -> Transition:
        """Fill in known signals that were omitted. Given values are checked even where they are not learned."""
        spec = self._learner.spec
        if not (0 <= bare.state < spec.num_states and 0 <= bare.action < spec.num_actions):
            return bare  # `observe` raises the error
        known = spec.signals[:, bare.step % spec.signals.shape[1], bare.state, bare.action].tolist()
        if reward is None and spec.learned_signals[0]:
            raise TransitionError("reward", None, "is missing, and this agent learns its reward")
        if not costs and spec.learned_signals[1:].any():
            raise TransitionError("costs", None, "are missing, and this agent learns its costs")
        signals = [known[0] if reward is None else reward, *(costs or known[1:])]
        if len(signals) != len(known):
            raise TransitionError("costs", costs, f"must have {spec.num_constraints} entries, one per constraint")
        for i, value in enumerate(signals):
            if not 0 <= value <= 1:
                raise TransitionError(f"costs[{i - 1}]" if i else "reward", value, "must be a number from 0 to 1")
        return bare._replace(reward=signals[0], costs=tuple(signals[1:]))
