"""The specification of a constrained MDP (paper, sections 3.2, 3.3 and 4): everything but the transition kernel.

Tables are kept in one canonical form so that kernels need no cases. A leading axis of length 1 stands for "the same at
every step"; otherwise it has length `horizon`. A task without episodes has the horizon `CONTINUING`, and every axis length 1.

    signals            [1+M, 1|H, S, A]   what a step yields: the reward first, then the cost of each constraint
    learned            [1+M, 1|H, S, A]   which of them are unknown, and estimated from what is observed
    dirichlet_prior    [1|H, S, A, W]     0 outside the support
    next_states        [0|1|H, S, A, W]   which state an entry of the prior is of; no rows: W = S, the state at its place
    available_actions  [S, A]
"""

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from safe_psrl.arrays import Floats, Mask, NextStates
from safe_psrl.errors import SpecError
from safe_psrl.problem.checks import (
    checked_flag,
    checked_integer,
    checked_mask,
    checked_names,
    checked_number,
    checked_table,
    frozen,
    refuse_where,
)
from safe_psrl.problem.constraint import Constraint, checked_constraint_names, checked_limits
from safe_psrl.problem.support import EVERY_STATE, checked_next_states, place_of, width_of

MAX_TABLE_ENTRIES = 2**30
PROBABILITY_TOLERANCE = 1e-9
ROUNDING = 1e-12  # by which a sum of normalised numbers may miss 1
MIN_PRIOR = 1e-300  # below it, the logarithms of draws overflow
MAX_PRIOR = 2.0**53  # above it, one observation more would be lost to rounding
CONTINUING = "continuing"  # in place of a horizon: there are no episodes
ENDLESS = 0  # how `CmdpSpec.horizon` keeps it
PRIOR_RANGE = f"must be greater than 0 ({MIN_PRIOR:g} to {MAX_PRIOR:g})"


@dataclass(frozen=True, eq=False, init=False)
class CmdpSpec:
    """A constrained MDP without its kernel: of a finite horizon, or continuing. Raises `SpecError` for invalid input."""

    num_states: int
    num_actions: int
    horizon: int  # 0 of a continuing task
    initial_distribution: Floats  # [S]
    signals: Floats  # [1+M, 1|H, S, A]
    learned: Mask  # [1+M, 1|H, S, A]
    constraint_names: tuple[str, ...]
    cost_budgets: Floats  # [M], tau
    satisfiable_costs: Floats  # [M], c0
    available_actions: Mask  # [S, A]
    dirichlet_prior: Floats  # [1|H, S, A, W]
    next_states: NextStates  # [0|1|H, S, A, W]
    stationary: bool
    state_names: tuple[str, ...]  # [S], or empty
    action_names: tuple[str, ...]  # [A], or empty

    def __init__(  # one line per field
        self,
        *,
        num_states: int,
        num_actions: int,
        horizon: int | str,
        reward: ArrayLike,
        constraints: tuple[Constraint, ...] | list[Constraint],
        reward_learned: bool = False,
        initial_state: int | None = None,
        initial_distribution: ArrayLike | None = None,
        available_actions: ArrayLike | None = None,
        support: ArrayLike | None = None,
        next_states: ArrayLike | None = None,
        dirichlet_prior: ArrayLike = 0.1,
        stationary: bool = True,
        state_names: tuple[str, ...] | list[str] = (),
        action_names: tuple[str, ...] | list[str] = (),
    ) -> None:
        """Check and canonicalise.

        horizon: steps of an episode; or "continuing" for a task that never ends, with `stationary` tables of every step.
        reward: [S, A] or [H, S, A], within [0, 1]; entries that are NaN (or None) are learned; with `reward_learned` all are,
            and `reward` is the guess until a pair is first visited.
        initial_state or initial_distribution: at most one of them; state 0 if neither is given.
        available_actions: [S, A]; all if not given. Every state needs one.
        support: [S, A, S], or [H, S, A, S] if not `stationary`: the next states known to be possible; all if not given.
        next_states: [S, A, W], or [H, S, A, W] if not `stationary`: the same as a list for each pair, ascending, -1 after the
            last. Then nothing is kept, drawn or planned for other next states: the form of large problems. Not with `support`.
        dirichlet_prior: a positive number for every next state of the support, or a table of the shape of `support` or
            `next_states`.
        stationary: one kernel for all steps, or one for each.
        state_names, action_names: for people, one for each state or action; unique, of at most 100 characters.
        """
        size = {
            "num_states": checked_integer("num_states", num_states, 1),
            "num_actions": checked_integer("num_actions", num_actions, 1),
            "horizon": ENDLESS if horizon == CONTINUING else checked_integer("horizon", horizon, 1),
        }
        stationary = checked_flag("stationary", stationary)
        if size["horizon"] == ENDLESS and not stationary:
            raise SpecError("stationary", stationary, "must be true in a continuing task, which has no first step")
        width = size["num_states"] if next_states is None else width_of(next_states)
        per_pair = max(width * (1 if stationary else size["horizon"]), size["horizon"])
        if size["num_states"] * size["num_actions"] * per_pair > MAX_TABLE_ENTRIES:
            greatest = max(size, key=size.__getitem__)
            raise SpecError(greatest, size[greatest], f"needs tables of more than {MAX_TABLE_ENTRIES} entries")
        self._set(**size, stationary=stationary)
        self._set(state_names=checked_names("state_names", state_names, self.num_states))
        self._set(action_names=checked_names("action_names", action_names, self.num_actions))
        self._set(initial_distribution=self._checked_start(initial_state, initial_distribution))
        self._set(available_actions=self._checked_actions(available_actions))
        places, possible = self._checked_support(support, next_states)
        self._set(next_states=places)
        self._set(dirichlet_prior=self._checked_prior(dirichlet_prior, possible))
        self._set_signals(reward, checked_flag("reward_learned", reward_learned), constraints)

    def _set(self, **fields: object) -> None:
        """Set fields of this frozen class during construction."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def is_continuing(self) -> bool:
        """Whether the task has no episodes; then budgets are averages per step."""
        return self.horizon == ENDLESS

    @property
    def largest_budget(self) -> int:
        """The horizon; 1 in a continuing task."""
        return self.horizon or 1

    @property
    def num_constraints(self) -> int:
        return len(self.constraint_names)

    @cached_property
    def learned_signals(self) -> Mask:
        """[1+M]: which signals have a learned entry."""
        return np.asarray(self.learned.any(axis=(1, 2, 3)))

    @cached_property
    def learns_signals(self) -> bool:
        """Whether any of reward and costs is estimated from what was observed."""
        return bool(self.learned.any())

    @property
    def support(self) -> Mask:
        """[1|H, S, A, W]: the next states that the prior holds possible."""
        return self.dirichlet_prior > 0

    @property
    def lists_next_states(self) -> bool:
        """Whether tables over next states have entries for the possible ones alone."""
        return len(self.next_states) > 0

    def place_of(self, step: int, state: int, action: int, next_state: int) -> int:
        """Where rows over next states have `next_state`; -1 if it is outside the support."""
        place, prior = next_state, self.dirichlet_prior
        if self.lists_next_states:
            place = place_of(self.next_states[step % len(self.next_states), state, action], next_state)
        return place if place >= 0 and prior[step % len(prior), state, action, place] > 0 else -1

    def with_signals(self, signals: ArrayLike) -> "CmdpSpec":
        """The same problem with other reward and costs, [1+M, 1|H, S, A]: the truth behind signals that are learned."""
        num_signals, pair = 1 + self.num_constraints, (self.num_states, self.num_actions)
        shapes = {f"[{num_signals}, {h}, num_states, num_actions]": (num_signals, h, *pair) for h in (1, self.largest_budget)}
        table = checked_table("signals", signals, shapes)
        refuse_where("signals", table, (table < 0) | (table > 1), "must be a number from 0 to 1")
        changed = copy(self)
        object.__setattr__(changed, "signals", frozen(table, np.float64))
        return changed

    def _checked_start(self, state: int | None, distribution: ArrayLike | None) -> Floats:
        if distribution is None:
            place = checked_integer("initial_state", 0 if state is None else state, 0, self.num_states - 1)
            return frozen(np.arange(self.num_states) == place, np.float64)
        if state is not None:
            raise SpecError("initial_state", state, "must not be given together with initial_distribution")
        table = checked_table("initial_distribution", distribution, {"[num_states]": (self.num_states,)})
        refuse_where("initial_distribution", table, table < 0, "must not be negative")
        total = float(table.sum())
        if abs(total - 1) > PROBABILITY_TOLERANCE:
            raise SpecError("sum of initial_distribution", total, "must be 1")
        # What is normalised already stays as it is: dividing again would change last bits on every way through a document.
        return frozen(table if abs(total - 1) < ROUNDING else table / total, np.float64)

    def _checked_actions(self, mask: ArrayLike | None) -> Mask:
        shape = (self.num_states, self.num_actions)
        table = np.ones(shape, np.bool_) if mask is None else mask
        checked = checked_mask("available_actions", table, {"[num_states, num_actions]": shape})
        idle = checked.sum(axis=1) == 0
        refuse_where("available_actions", ~idle, idle, "has no available action")
        return frozen(checked, np.bool_)

    def _checked_support(self, support: ArrayLike | None, next_states: ArrayLike | None) -> tuple[NextStates, Mask]:
        """`next_states` as they are kept, and a mask [S, A, W] or [H, S, A, W]."""
        pair = (self.num_states, self.num_actions)
        if next_states is None:
            shapes = self._row_shapes("num_states", self.num_states)
            mask = np.ones((*pair, self.num_states), np.bool_) if support is None else checked_mask("support", support, shapes)
            field, places, possible = "support", EVERY_STATE, mask
        elif support is not None:
            raise SpecError("support", support, "must not be given together with next_states")
        else:
            shapes = self._row_shapes("width", width_of(next_states))
            field, (places, possible) = "next_states", checked_next_states(next_states, self.num_states, shapes)
        nowhere = possible.sum(axis=-1) == 0
        refuse_where(field, ~nowhere, nowhere & self.available_actions, "has no possible next state")
        return places, possible

    def _row_shapes(self, width_name: str, width: int) -> dict[str, tuple[int, ...]]:
        """The shapes that tables over next states may have."""
        pair = (self.num_states, self.num_actions, width)
        shapes: dict[str, tuple[int, ...]] = {f"[num_states, num_actions, {width_name}]": pair}
        if not self.stationary:
            shapes[f"[horizon, num_states, num_actions, {width_name}]"] = (self.horizon, *pair)
        return shapes

    def _checked_prior(self, prior: ArrayLike, possible: Mask) -> Floats:
        row = possible.shape[-3:]
        steps = 1 if self.stationary else self.horizon
        if isinstance(prior, str) or not hasattr(prior, "__len__"):
            number = checked_number("dirichlet_prior", prior)
            if not MIN_PRIOR <= number <= MAX_PRIOR:
                raise SpecError("dirichlet_prior", number, PRIOR_RANGE)
            weights = np.full(row, number)
        else:
            shapes = self._row_shapes("width" if self.lists_next_states else "num_states", row[-1])
            weights = checked_table("dirichlet_prior", prior, shapes)
            wrong = possible & ~((weights >= MIN_PRIOR) & (weights <= MAX_PRIOR))
            requirement = f"{PRIOR_RANGE} on the support; use `support` to rule a next state out"
            refuse_where("dirichlet_prior", np.broadcast_to(weights, wrong.shape), wrong, requirement)
        return frozen(np.broadcast_to(np.where(possible, weights, 0.0), (steps, *row)), np.float64)

    def _set_signals(
        self, reward: ArrayLike, reward_learned: bool, constraints: tuple[Constraint, ...] | list[Constraint]
    ) -> None:
        names = checked_constraint_names(constraints)
        tables = [self._checked_signal("reward", reward)]
        tables += [self._checked_signal(f"constraints[{i}].cost", c.cost) for i, c in enumerate(constraints)]
        shape = (max(table.shape[0] for table in tables), self.num_states, self.num_actions)
        signals = np.array([np.broadcast_to(table, shape) for table in tables])
        wholly = [reward_learned] + [checked_flag(f"constraints[{i}].learned", c.learned) for i, c in enumerate(constraints)]
        learned = np.isnan(signals) | np.array(wholly)[:, None, None, None]
        limits = [checked_limits(f"constraints[{i}]", c, self.horizon) for i, c in enumerate(constraints)]
        self._set(
            constraint_names=names,
            signals=frozen(np.nan_to_num(signals), np.float64),
            learned=frozen(learned, np.bool_),
            cost_budgets=frozen(np.array([tau for tau, _ in limits]), np.float64),
            satisfiable_costs=frozen(np.array([c0 for _, c0 in limits]), np.float64),
        )

    def _checked_signal(self, field: str, value: ArrayLike) -> Floats:
        pair = (self.num_states, self.num_actions)
        shapes: dict[str, tuple[int, ...]] = {"[num_states, num_actions]": pair}
        if not self.is_continuing:
            shapes["[horizon, num_states, num_actions]"] = (self.horizon, *pair)
        table = checked_table(field, value, shapes, unknown=True)
        refuse_where(field, table, (table < 0) | (table > 1), "must be a number from 0 to 1")
        return table.reshape(-1, *pair)
