"""An agent's definition: its specification as a message, checked, and as values."""

import hashlib
import math
import sys
import zlib
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, Policy
from safe_psrl.errors import SpecError
from safe_psrl.learner import Plan, SafePsrl
from safe_psrl.posterior.streams import MAX_SEED
from safe_psrl.problem.checks import checked_mask, refuse_where, sealed
from safe_psrl.problem.documents import options_to_document
from safe_psrl.problem.options import CERTIFIED, SafePsrlOptions
from safe_psrl.problem.spec import CmdpSpec, Constraint
from safe_psrl.problem.support import written
from safe_psrl_proto.v1 import events_pb2, model_pb2
from safe_psrl_server.agents.events import are_large
from safe_psrl_server.agents.sizes import check_environment, check_size, table_entries
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import InvalidArgumentError

DTYPES = {"<i8": np.dtype("<i8"), "<f8": np.dtype("<f8")}


def cmdp_to_message(spec: CmdpSpec) -> model_pb2.CmdpSpec:
    message = model_pb2.CmdpSpec(
        num_states=spec.num_states,
        num_actions=spec.num_actions,
        horizon=spec.horizon,
        initial_distribution=table(spec.initial_distribution),
        reward=table(_steps(spec.signals[0])),
        reward_learned=bool(spec.learned[0].all()),
        constraints=[
            model_pb2.Constraint(
                name=name,
                cost=table(_steps(spec.signals[1 + i])),
                cost_budget=spec.cost_budgets[i],
                satisfiable_cost=spec.satisfiable_costs[i],
                learned=bool(spec.learned[1 + i].all()),
                unknown_costs=_unknown(spec, 1 + i),
            )
            for i, name in enumerate(spec.constraint_names)
        ],
        non_stationary=not spec.stationary,
        unknown_rewards=_unknown(spec, 0),
    )
    weights = spec.dirichlet_prior[spec.support]
    uniform = bool((weights == weights[0]).all())
    message.dirichlet_prior.CopyFrom(table(weights[0]) if uniform else table(_steps(spec.dirichlet_prior)))
    if not spec.available_actions.all():
        message.available_actions.CopyFrom(table(spec.available_actions))
    if spec.lists_next_states:
        message.next_states.CopyFrom(_integer_table(_steps(written(spec.next_states, spec.dirichlet_prior))))
    elif not spec.support.all():
        message.support.CopyFrom(table(_steps(spec.support)))
    return message


def _unknown(spec: CmdpSpec, n: int) -> model_pb2.Table | None:
    """Which single entries of a signal are unknown; None if all are, or none is."""
    learned = spec.learned[n]
    return None if learned.all() or not learned.any() else table(_steps(learned))


def table(values: NDArray[Any] | float) -> model_pb2.Table:
    array = np.asarray(values, np.float64)
    return model_pb2.Table(shape=array.shape, values=array.ravel())


def _integer_table(values: NDArray[np.int64]) -> model_pb2.IntegerTable:
    return model_pb2.IntegerTable(shape=values.shape, values=values.ravel())


def options_from_message(message: model_pb2.SafePsrlOptions) -> SafePsrlOptions:
    given = {field.name: value for field, value in message.ListFields()}
    return SafePsrlOptions(**given)


def write_policy(plan: Plan, message: model_pb2.Policy) -> None:
    message.horizon, message.num_states = plan.policy.shape
    message.actions.extend(plan.policy.ravel().tolist())
    if len(plan.shares) > 1:
        for share, policy in zip(plan.shares.tolist(), plan.mixture, strict=True):
            message.mixture.add(share=share, actions=policy.ravel().tolist())


def policy_from_message(message: model_pb2.Policy) -> Policy:
    return sealed(np.array(message.actions, np.int32).reshape(message.horizon, message.num_states))


def pack(array: Floats) -> events_pb2.PackedArray:
    data = zlib.compress(np.ascontiguousarray(array, "<f8").tobytes(), level=1)
    return events_pb2.PackedArray(shape=array.shape, dtype="<f8", data=data)


def unpack(message: events_pb2.PackedArray, shape: tuple[int, ...] | None = None) -> Floats:
    """The array, which must have `shape` if that is given. Raises ValueError if not; no more is unpacked than fits."""
    if message.dtype not in DTYPES:
        raise ValueError(f"an array has the unknown type {message.dtype!r}")
    if shape is None:
        shape = tuple(message.shape)
    elif tuple(message.shape) != shape:
        raise ValueError(f"an array is {list(message.shape)}, not {list(shape)}")
    size = math.prod(shape) * DTYPES[message.dtype].itemsize
    if min(shape, default=0) < 0 or size >= sys.maxsize:
        raise ValueError(f"an array cannot be {list(shape)}")
    try:
        data = zlib.decompressobj().decompress(message.data, size + 1)
    except zlib.error as error:
        raise ValueError(f"an array cannot be unpacked: {error}") from None
    if len(data) != size:
        raise ValueError("an array has more or fewer numbers than its shape")
    return np.frombuffer(data, DTYPES[message.dtype]).reshape(shape).astype(np.float64)


def cmdp_from_message(message: model_pb2.CmdpSpec) -> CmdpSpec:
    start: dict[str, Any] = {}
    if message.HasField("initial_state"):
        start["initial_state"] = message.initial_state
    elif message.HasField("initial_distribution"):
        start["initial_distribution"] = _array("initial_distribution", message.initial_distribution)
    optional: dict[str, Any] = {
        name: _array(name, getattr(message, name))
        for name in ("available_actions", "support", "next_states", "dirichlet_prior")
        if message.HasField(name)
    }
    if message.HasField("dirichlet_prior") and not message.dirichlet_prior.shape:
        optional["dirichlet_prior"] = optional["dirichlet_prior"].item()
    return CmdpSpec(
        num_states=message.num_states,
        num_actions=message.num_actions,
        horizon=message.horizon,
        reward=_signal("reward", message.reward, "unknown_rewards", message),
        reward_learned=message.reward_learned,
        constraints=[
            Constraint(
                name=constraint.name,
                cost=_signal(f"constraints[{i}].cost", constraint.cost, "unknown_costs", constraint),
                cost_budget=constraint.cost_budget,
                satisfiable_cost=constraint.satisfiable_cost,
                learned=constraint.learned,
            )
            for i, constraint in enumerate(message.constraints)
        ],
        stationary=not message.non_stationary,
        **start,
        **optional,
    )


def _signal(field: str, signal: model_pb2.Table, mask: str, message: model_pb2.CmdpSpec | model_pb2.Constraint) -> NDArray[Any]:
    """The table, with NaN where the field `mask` of `message` calls an entry unknown."""
    values = _array(field, signal)
    refuse_where(field, values, ~np.isfinite(values), f"must be finite; use {mask} for what is not known")
    if not message.HasField(mask):  # type: ignore[arg-type]  # a name for each of the two messages
        return values
    unknown = checked_mask(mask, _array(mask, getattr(message, mask)), {f"the shape of {field}": values.shape})
    return np.where(unknown, np.nan, values)


def _array(field: str, message: model_pb2.Table | model_pb2.IntegerTable) -> NDArray[Any]:
    values = np.array(message.values, np.float64 if isinstance(message, model_pb2.Table) else np.int32)
    shape = tuple(message.shape)
    if len(shape) > MAX_AXES:
        raise SpecError(f"shape of {field}", f"{len(shape)} axes", f"must have at most {MAX_AXES} axes")
    if any(length < 0 for length in shape) or np.prod(shape, dtype=object) != values.size:
        raise SpecError(f"shape of {field}", list(shape), f"must have room for its {values.size} values")
    return values.reshape(shape)


def _steps(array: NDArray[Any]) -> NDArray[Any]:
    """Without the leading axis where it has length 1."""
    return array[0] if len(array) == 1 else array


DEFAULT_METHOD: Final = CERTIFIED
MAX_OPEN_EPISODES: Final = 1000
MAX_AXES: Final = 4
_learners: Final[MutableMapping[tuple[bytes, bytes], SafePsrl]] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Definition:
    """An agent's specification, checked, as message and as values."""

    message: model_pb2.AgentSpec
    shared_learner: SafePsrl  # of all agents with this problem and these options; kept alive here
    learner: SafePsrl
    fallback: Policy | None
    max_open_episodes: int
    episode_timeout_micros: int

    @cached_property
    def spec(self) -> CmdpSpec:
        return self.learner.spec

    @cached_property
    def first_states(self) -> frozenset[int]:
        """Where episodes may begin."""
        return frozenset(np.flatnonzero(self.spec.initial_distribution).tolist())

    @cached_property
    def has_large_policies(self) -> bool:
        """Whether policies are stored beside the stream."""
        return are_large(self.message.cmdp)

    @cached_property
    def cost_budgets(self) -> list[float]:
        budgets: list[float] = self.spec.cost_budgets.tolist()
        return budgets

    @cached_property
    def learns_reward(self) -> bool:
        return bool(self.spec.learned_signals[0])

    @cached_property
    def learns_costs(self) -> bool:
        return bool(self.spec.learned_signals[1:].any())

    @cached_property
    def available_pairs(self) -> int:
        return int(np.count_nonzero(self.spec.available_actions))

    @cached_property
    def table_entries(self) -> int:
        """Entries of its largest table: a measure of its memory."""
        return table_entries(self.message.cmdp)


def definition_of(message: model_pb2.AgentSpec, limits: Limits | None = None) -> Definition:
    """The checked definition. Raises `InvalidArgumentError` that names the field. May take as long as a plan."""
    if limits is not None:
        check_size(message.cmdp, limits)
    try:
        shared = _shared_learner(message)
    except SpecError as error:
        raise InvalidArgumentError(f"spec.{error.field}", f"{error.requirement} (is {error.value!r})") from None
    if message.seed > MAX_SEED:
        raise InvalidArgumentError("spec.seed", f"must be at most 2^63 - 1 (is {message.seed})")
    if not 1 <= message.max_open_episodes <= MAX_OPEN_EPISODES:
        raise InvalidArgumentError("spec.max_open_episodes", f"must be from 1 to {MAX_OPEN_EPISODES}")
    if not 0 < message.episode_timeout_seconds <= 1e9:
        raise InvalidArgumentError("spec.episode_timeout_seconds", "must be above 0 and at most 1e9")
    check_environment(message.environment)
    message.always_satisfiable = shared.always_satisfiable  # stored, so that it is checked once
    return Definition(
        message=message,
        shared_learner=shared,
        learner=shared.with_seed(message.seed),
        fallback=_fallback(message, shared.spec),
        max_open_episodes=message.max_open_episodes,
        episode_timeout_micros=int(message.episode_timeout_seconds * 1e6),
    )


def checked_definition(message: model_pb2.AgentSpec, limits: Limits) -> Definition:
    """All that creating an agent checks of its definition. Raises `InvalidArgumentError` that names the field."""
    check_size(message.cmdp, limits)  # before it is copied
    return definition_of(completed(message, limits.episode_timeout_seconds))


def _shared_learner(message: model_pb2.AgentSpec) -> SafePsrl:
    """One learner for all agents with the same problem and options: its tables take time and memory to build."""
    problem = hashlib.blake2b(message.cmdp.SerializeToString(deterministic=True)).digest()
    key = problem, message.options.SerializeToString(deterministic=True)
    learner = _learners.get(key)
    if learner is None:
        known = message.always_satisfiable if message.HasField("always_satisfiable") else None
        options = options_from_message(message.options)
        learner = _learners[key] = SafePsrl(cmdp_from_message(message.cmdp), options, always_satisfiable=known)
    return learner


def completed(message: model_pb2.AgentSpec, default_timeout_seconds: float) -> model_pb2.AgentSpec:
    """A copy with every default filled in, so that equal definitions are equal messages."""
    full = model_pb2.AgentSpec()
    full.CopyFrom(message)
    full.ClearField("always_satisfiable")  # `definition_of` sets it
    try:
        if not full.options.HasField("method"):
            full.options.method = DEFAULT_METHOD
        options = options_to_document(options_from_message(full.options))
    except SpecError as error:
        raise InvalidArgumentError(f"spec.options.{error.field}", f"{error.requirement} (is {error.value!r})") from None
    full.options.CopyFrom(model_pb2.SafePsrlOptions(**options))
    full.max_open_episodes = full.max_open_episodes or 1
    full.episode_timeout_seconds = full.episode_timeout_seconds or default_timeout_seconds
    return full


def _fallback(message: model_pb2.AgentSpec, spec: CmdpSpec) -> Policy | None:
    if not message.HasField("fallback_policy"):
        return None
    given = message.fallback_policy
    if (given.horizon, given.num_states) != (spec.horizon, spec.num_states) or len(
        given.actions
    ) != spec.horizon * spec.num_states:
        raise InvalidArgumentError("spec.fallback_policy", f"must have {spec.horizon} x {spec.num_states} actions")
    policy = policy_from_message(given)
    known = (policy >= 0) & (policy < spec.num_actions)
    playable = known & spec.available_actions[np.arange(spec.num_states), np.where(known, policy, 0)]
    for place in np.flatnonzero(~playable)[:1].tolist():
        state, action = place % spec.num_states, policy.flat[place]
        raise InvalidArgumentError(f"spec.fallback_policy.actions[{place}]", f"{action} is not available in state {state}")
    return policy
