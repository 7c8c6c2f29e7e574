"""Gymnasium environments with finitely many states and actions, for agents to play.

bridge = GymBridge(gymnasium.make("FrozenLake-v1"), costs=[GymCost("falls", cost_budget=0.3, satisfiable_cost=0.0, of=fell)])
play(bridge, LocalAgent(bridge.spec), episodes=500)                  # in this process, or
client.create_agent("lake", bridge.definition(method="certified"))       # through the service:
play(bridge, RemoteAgent(client, "lake"), episodes=500)
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from safe_psrl.errors import SpecError, TransitionError
from safe_psrl.problem.checks import checked_mask, checked_table, refuse_where
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.documents import spec_to_document
from safe_psrl.problem.spec import CONTINUING, CmdpSpec
from safe_psrl_client import spec_from_document
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_testbed.descriptions import description_of
from safe_psrl_testbed.environment import Outcome
from safe_psrl_testbed.gym_spaces import DiscreteStates, StateOf, discrete_actions, discrete_states

STARTS: Final = 100  # resets that estimate the initial distribution, where none is given


class Seen(NamedTuple):
    """One step of the environment, in its own types."""

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    info: Mapping[str, Any]


@dataclass(frozen=True)
class GymCost:
    """A cost of each step, from 0 to 1, whose expected sum over an episode must be `cost_budget` at most.

    `of` is a key of the step's `info`, set by the environment or a wrapper, or a function of the step.
    `known` is what is known of it: a table [S, A] with NaN where it is not; or a cost for each known action, such as
    `{0: 0.0, 1: 0.0}`; or a function of state and action that returns None where it is not known. The rest is learned, as is
    everything without `known`, starting from `guess`.
    """

    name: str
    cost_budget: float
    satisfiable_cost: float
    of: str | Callable[[Seen], float] = "cost"
    known: ArrayLike | Mapping[int, float] | Callable[[int, int], float | None] | None = None
    guess: float = 0.0

    def table(self, num_states: int, num_actions: int) -> ArrayLike | None:
        """[S, A], with NaN where the cost is not known; None if nothing is known."""
        if isinstance(self.known, Mapping):
            row = [self.known.get(action, math.nan) for action in range(num_actions)]
            return [row] * num_states
        if callable(self.known):
            costs = [[self.known(state, action) for action in range(num_actions)] for state in range(num_states)]
            return [[math.nan if cost is None else cost for cost in row] for row in costs]
        return self.known

    def amount(self, seen: Seen) -> float:
        if not isinstance(self.of, str):
            return float(self.of(seen))
        if self.of not in seen.info:
            raise TransitionError(
                f"info[{self.of!r}]", None, f"is missing, and is the cost {self.name!r}; give GymCost a function with of=…"
            )
        return float(seen.info[self.of])


class GymBridge:
    """An environment for `play`, and its specification for an agent: everything but the kernel.

    If the environment may terminate an episode (`terminates`), there is one more state, the last, which is absorbing and has
    reward and costs 0, so that plans account for termination. A truncation does not lead there: it is the horizon, which is
    `horizon` or else the environment's step limit. With `horizon="continuing"` the task has no end: budgets are averages per
    step, and `play_steps` resets the environment once.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        costs: Sequence[GymCost],
        *,
        horizon: int | Literal["continuing"] | None = None,
        quantiser: StateOf | None = None,
        actions: Sequence[Any] | None = None,
        reward_range: tuple[float, float] = (0.0, 1.0),
        known_reward: ArrayLike | None = None,
        reward_guess: float = 1.0,
        terminates: bool = True,
        seed: int | None = None,
        **knowledge: Any,
    ) -> None:
        """The environment is not reset yet.

        quantiser: needed unless observations are Discrete.
        actions: the environment's actions in the agent's order; needed unless they are Discrete.
        reward_range: the rewards that are scaled to 0 and 1.
        known_reward: [S, A], from 0 to 1; the reward is learned if it is not given, starting from `reward_guess`.
        knowledge: further fields of `CmdpSpec`, such as `initial_state`, `available_actions` and `support`, without the
            state of ended episodes (`support` may have it; `next_states` and a table of `dirichlet_prior` must).
        """
        limit = env.spec.max_episode_steps if env.spec is not None else None
        if horizon is None and limit is None:
            raise SpecError("horizon", None, "is missing, and the environment has no limit of steps; give one")
        if horizon == CONTINUING and terminates:
            raise SpecError("terminates", terminates, "must be False: a continuing task has no end")
        low, high = reward_range
        if not low < high:
            raise SpecError("reward_range", reward_range, "must be the least and the greatest reward")
        self.env = env
        self.costs = tuple(costs)
        self.horizon = horizon if horizon is not None else limit
        self.state_of = quantiser if quantiser is not None else discrete_states(env.observation_space)
        self.actions: Sequence[Any] = actions if actions is not None else discrete_actions(env.action_space)
        self.ended = self.state_of.num_states if terminates else None  # the state of episodes that ended
        self._low, self._high = float(low), float(high)
        self._reward = (known_reward, reward_guess)
        self._knowledge = knowledge
        self._given_seed = self._seed = seed
        self._observation: Any = None
        self._step = 0

    @property
    def environment(self) -> dict[str, str]:
        """What, beside the specification, changes what is learned: part of the definition, so that it is compared."""
        notes = {"reward_range": f"{self._low} to {self._high}"}
        if not isinstance(self.state_of, DiscreteStates):
            describe = getattr(self.state_of, "description", None)
            notes["quantiser"] = describe() if describe else type(self.state_of).__qualname__
        if not isinstance(self.actions, range):
            listed = repr([np.asarray(action).tolist() for action in self.actions])
            notes["actions"] = f"{len(self.actions)}, digest {hashlib.sha256(listed.encode()).hexdigest()[:12]}"
        for cost in self.costs:
            notes[f"cost {cost.name}"] = f"info[{cost.of!r}]" if isinstance(cost.of, str) else description_of(cost.of)
        return notes

    @cached_property
    def spec(self) -> CmdpSpec:
        """What an agent knows. Without an initial state or distribution, the environment is reset repeatedly to estimate it."""
        fields = self._extended(dict(self._knowledge))
        if not fields.keys() & {"initial_state", "initial_distribution"}:
            fields["initial_distribution"] = self._distribution_of_starts()
        return CmdpSpec(
            num_states=self._num_states,
            num_actions=len(self.actions),
            horizon=self.horizon,  # type: ignore[arg-type]
            reward=self._signal("known_reward", *self._reward),
            reward_learned=self._reward[0] is None,
            constraints=[
                Constraint(
                    c.name,
                    self._signal(f"costs[{i}].known", c.table(self.state_of.num_states, len(self.actions)), c.guess),
                    c.cost_budget,
                    c.satisfiable_cost,
                    learned=c.known is None,
                )
                for i, c in enumerate(self.costs)
            ],
            **fields,
        )

    def definition(self, *, seed: int = 0, fallback_policy: ArrayLike | None = None, **options: Any) -> model_pb2.AgentSpec:
        """The definition of a service's agent, with its seed and options (`method="certified"`, …).

        fallback_policy: the actions to play while the agent is paused, [num_states] or [horizon, num_states], without the
        state of ended episodes. Creating an existing agent from a bridge that would teach it something else, with another
        quantiser for example, is an `AlreadyExistsError` that names it.
        """
        agent: dict[str, Any] = {"seed": seed, "options": options, "environment": self.environment}
        if fallback_policy is not None:
            agent["fallback_policy"] = self._fallback(fallback_policy)
        return spec_from_document({**spec_to_document(self.spec), "agent": agent})

    def reset(self, seed: int | None = None) -> int:
        """Begin an episode; its first state. The first one has the bridge's seed, if none is given here."""
        seed, self._seed = (seed, None) if seed is not None else (self._seed, None)
        self._observation, _ = self.env.reset(seed=seed)
        self._step = 0
        return self.state_of(self._observation)

    def step(self, action: int) -> Outcome:
        """Play the agent's action. Rewards and costs outside 0 to 1 raise a `TransitionError`."""
        chosen, before = self.actions[action], self._observation
        self._observation, reward, terminated, truncated, info = self.env.step(chosen)
        self._step += 1
        seen = Seen(before, chosen, float(reward), self._observation, terminated, info)
        if terminated and self.ended is None:
            raise TransitionError("terminated", True, "contradicts terminates=False; construct the bridge with terminates=True")
        if truncated and self.horizon == CONTINUING:
            raise TransitionError("truncated", True, "contradicts horizon='continuing'; make the environment without a limit")
        next_state = self.ended if terminated and self.ended is not None else self.state_of(self._observation)
        done = bool(terminated or truncated or self._step == self.horizon)
        return Outcome(next_state, self.scaled(seen), self.costs_of(seen), done)

    def scaled(self, seen: Seen) -> float:
        """The reward, scaled to 0 to 1."""
        scaled = (seen.reward - self._low) / (self._high - self._low)
        if not 0 <= scaled <= 1:
            raise TransitionError("reward", seen.reward, f"is outside reward_range, {self._low:g} to {self._high:g}")
        return scaled

    def costs_of(self, seen: Seen) -> tuple[float, ...]:
        amounts = tuple(cost.amount(seen) for cost in self.costs)
        for cost, amount in zip(self.costs, amounts, strict=True):
            if not 0 <= amount <= 1:
                raise TransitionError(f"cost {cost.name!r}", amount, "must be a number from 0 to 1; scale it, and its budget")
        return amounts

    @property
    def _num_states(self) -> int:
        return self.state_of.num_states + (self.ended is not None)

    def _signal(self, field: str, known: ArrayLike | None, guess: float) -> NDArray[np.float64]:
        """[S, A], 0 in the terminal state."""
        table = np.zeros((self._num_states, len(self.actions)))
        seen = table[: self.state_of.num_states]
        shapes = {"[num_states, num_actions]": seen.shape}
        seen[:] = guess if known is None else checked_table(field, known, shapes, unknown=True)
        return table

    def _extended(self, fields: dict[str, Any]) -> dict[str, Any]:
        """`fields` extended by the terminal state, which is absorbing and reachable from any state."""
        if self.ended is None:
            return fields
        size, actions, ended = self._num_states, len(self.actions), self.ended
        if "next_states" not in fields:
            support = np.ones((size, actions, size), np.bool_)
            if "support" in fields:
                # without the ended state, or with it
                shapes = {f"[{n}, {actions}, {n}]": (n, actions, n) for n in (ended, size)}
                given = checked_mask("support", fields["support"], shapes)
                support[: len(given), :, : len(given)] = given
            support[ended, :, :ended] = False
            fields["support"] = support
        if "available_actions" in fields:
            shape = {"[num_states, num_actions]": (ended, actions)}
            mask = checked_mask("available_actions", fields["available_actions"], shape)
            fields["available_actions"] = np.vstack([mask, np.ones(actions, np.bool_)])
        if "initial_distribution" in fields:
            fields["initial_distribution"] = np.append(fields["initial_distribution"], 0.0)
        return fields

    def _fallback(self, given: ArrayLike) -> list[list[int]]:
        """[H, S], with an action for the terminal state."""
        states, horizon = self.state_of.num_states, self.spec.horizon or 1
        shapes = {"[num_states]": (states,), "[horizon, num_states]": (horizon, states)}
        table = checked_table("fallback_policy", given, shapes)
        refuse_where("fallback_policy", table, table != np.floor(table), "must be a whole number, an action")
        rows = np.broadcast_to(table, (horizon, states)).astype(np.int64)
        extended = rows if self.ended is None else np.pad(rows, ((0, 0), (0, 1)))
        actions: list[list[int]] = extended.tolist()
        return actions

    def _distribution_of_starts(self) -> NDArray[np.float64]:
        """[S]: the relative frequencies of the resets' states; if they differ, smoothed by one reset spread over all states.

        The resets have a seed, so that the definition is the same the next time. Episodes then use the bridge's own seed.
        """
        given = self._given_seed
        states = [self.reset(0 if given is None else given), *(self.reset() for _ in range(STARTS - 1))]
        self._seed = int(np.random.default_rng().integers(2**31)) if given is None else given
        counts = np.bincount(states, minlength=self._num_states).astype(np.float64)
        if np.count_nonzero(counts) > 1:
            counts[: self.state_of.num_states] += 1 / self.state_of.num_states
        distribution: NDArray[np.float64] = counts / counts.sum()
        return distribution
