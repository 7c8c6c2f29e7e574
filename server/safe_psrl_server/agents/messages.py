"""Problems, options, policies and tables as messages, and back."""

import math
import sys
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from safe_psrl.arrays import Floats, Policy
from safe_psrl.continuing import EpochPlan
from safe_psrl.errors import SpecError
from safe_psrl.learner import Plan
from safe_psrl.problem.checks import checked_mask, refuse_where, sealed
from safe_psrl.problem.constraint import Constraint
from safe_psrl.problem.options import DriftOptions, SafePsrlOptions
from safe_psrl.problem.spec import CONTINUING, CmdpSpec
from safe_psrl.problem.support import written
from safe_psrl_proto.v1 import events_pb2, model_pb2

MAX_AXES: Final = 4
DTYPES = {"<i8": np.dtype("<i8"), "<f8": np.dtype("<f8")}


def cmdp_to_message(spec: CmdpSpec) -> model_pb2.CmdpSpec:
    message = model_pb2.CmdpSpec(
        num_states=spec.num_states,
        num_actions=spec.num_actions,
        horizon=spec.horizon,
        continuing=spec.is_continuing,
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
        state_names=spec.state_names,
        action_names=spec.action_names,
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


def drift_from_message(message: model_pb2.DriftOptions) -> DriftOptions:
    given = {field.name: value for field, value in message.ListFields()}
    return DriftOptions(**given)


def write_policy(plan: Plan | EpochPlan, message: model_pb2.Policy) -> None:
    if isinstance(plan, EpochPlan):
        message.num_states = len(plan.probabilities)
        message.probabilities.extend(plan.probabilities.ravel().tolist())
        return
    message.horizon, message.num_states = plan.policy.shape
    message.actions.extend(plan.policy.ravel().tolist())
    if len(plan.shares) > 1:
        for share, policy in zip(plan.shares.tolist(), plan.mixture, strict=True):
            message.mixture.add(share=share, actions=policy.ravel().tolist())


def policy_from_message(message: model_pb2.Policy) -> Policy:
    return sealed(np.array(message.actions, np.int32).reshape(message.horizon, message.num_states))


def table_of_policy(message: model_pb2.Policy) -> Policy | Floats:
    """Actions [H, S]; for a randomised stationary policy, probabilities [S, A]."""
    if not message.probabilities:
        return policy_from_message(message)
    return sealed(np.array(message.probabilities, np.float64).reshape(message.num_states, -1))


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
    if message.continuing and message.horizon:
        raise SpecError("horizon", message.horizon, "must be absent in a continuing task")
    start: dict[str, Any] = {}
    if message.HasField("initial_state"):
        start["initial_state"] = message.initial_state
    elif message.HasField("initial_distribution"):
        start["initial_distribution"] = array_of("initial_distribution", message.initial_distribution)
    optional: dict[str, Any] = {
        name: array_of(name, getattr(message, name))
        for name in ("available_actions", "support", "next_states", "dirichlet_prior")
        if message.HasField(name)
    }
    if message.HasField("dirichlet_prior") and not message.dirichlet_prior.shape:
        optional["dirichlet_prior"] = optional["dirichlet_prior"].item()
    return CmdpSpec(
        num_states=message.num_states,
        num_actions=message.num_actions,
        horizon=CONTINUING if message.continuing else message.horizon,
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
        state_names=message.state_names[:],
        action_names=message.action_names[:],
        **start,
        **optional,
    )


def _signal(field: str, signal: model_pb2.Table, mask: str, message: model_pb2.CmdpSpec | model_pb2.Constraint) -> NDArray[Any]:
    """The table, with NaN where the field `mask` of `message` calls an entry unknown."""
    values = array_of(field, signal)
    refuse_where(field, values, ~np.isfinite(values), f"must be finite; use {mask} for what is not known")
    if not message.HasField(mask):  # type: ignore[arg-type]  # a name for each of the two messages
        return values
    unknown = checked_mask(mask, array_of(mask, getattr(message, mask)), {f"the shape of {field}": values.shape})
    return np.where(unknown, np.nan, values)


def array_of(field: str, message: model_pb2.Table | model_pb2.IntegerTable) -> NDArray[Any]:
    """The table as an array. Raises `SpecError` if its shape does not fit."""
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
