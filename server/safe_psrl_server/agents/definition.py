"""An agent's definition: its checked specification, as a message and as values."""

import hashlib
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from safe_psrl.arrays import Policy
from safe_psrl.continuing import DEFAULT_MAX_EPOCH_STEPS, ContinuingPsrl
from safe_psrl.errors import SpecError
from safe_psrl.learner import AgentState, SafePsrl
from safe_psrl.methods.epoch import average_assumption_is_certain
from safe_psrl.posterior.initial_counts import InitialCounts
from safe_psrl.posterior.streams import MAX_SEED
from safe_psrl.problem.documents import options_to_document
from safe_psrl.problem.options import CERTIFIED
from safe_psrl.problem.spec import CmdpSpec
from safe_psrl_proto.v1 import model_pb2
from safe_psrl_server.agents.definition_checks import (
    LIVE,
    MAX_OPEN_EPISODES,
    SHADOW,
    check_environment,
    check_epochs,
    check_guard,
    check_mode,
    check_origin,
    check_size,
    checked_policy,
    table_entries,
)
from safe_psrl_server.agents.messages import array_of, cmdp_from_message, drift_from_message, options_from_message
from safe_psrl_server.config import Limits
from safe_psrl_server.errors import InvalidArgumentError

DEFAULT_METHOD: Final = CERTIFIED
MOST_WATCHED_ENTRIES: Final = 10_000_000  # of the transition counts, if drift is watched for by default
_learners: Final[MutableMapping[tuple[bytes, ...], SafePsrl]] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Definition:
    """An agent's checked specification, as a message and as values."""

    message: model_pb2.AgentSpec
    shared_learner: SafePsrl  # of all agents with this problem and these options; kept alive here
    learner: SafePsrl
    fallback: Policy | None
    max_open_episodes: int
    episode_timeout_micros: int

    @cached_property
    def continuing(self) -> ContinuingPsrl | None:
        """The learner of a task without episodes."""
        return ContinuingPsrl.over(self.learner, self.message.max_epoch_steps) if self.spec.is_continuing else None

    @cached_property
    def spec(self) -> CmdpSpec:
        return self.learner.spec

    @cached_property
    def is_shadow(self) -> bool:
        """Whether the agent only proposes actions."""
        return self.message.mode == SHADOW

    @cached_property
    def first_states(self) -> frozenset[int]:
        """The states in which episodes may start."""
        return frozenset(np.flatnonzero(self.spec.initial_distribution).tolist())

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

    def initial_state(self) -> AgentState:
        """The state of a new agent: its warm start, or nothing learned."""
        return _initial_state(self.message, self.learner)

    @cached_property
    def table_entries(self) -> int:
        """Entries of the agent's largest table: a measure of its memory."""
        return table_entries(self.message.cmdp)


def definition_of(message: model_pb2.AgentSpec, limits: Limits | None = None) -> Definition:
    """The checked definition. Raises `InvalidArgumentError` that names the field. May take as long as a plan."""
    if limits is not None:
        check_size(message.cmdp, limits)
    try:
        shared = _shared_learner(message)
    except SpecError as error:
        raise InvalidArgumentError(f"spec.{error.field}", f"{error.requirement} (got {error.value!r})") from None
    if message.seed > MAX_SEED:
        raise InvalidArgumentError("spec.seed", f"must be at most 2^63 - 1, got {message.seed}")
    if not 1 <= message.max_open_episodes <= MAX_OPEN_EPISODES:
        raise InvalidArgumentError("spec.max_open_episodes", f"must be from 1 to {MAX_OPEN_EPISODES}")
    if not 0 < message.episode_timeout_seconds <= 1e9:
        raise InvalidArgumentError("spec.episode_timeout_seconds", "must be above 0 and at most 1e9")
    check_environment(message.environment)
    check_guard(message.guard)
    check_mode(message)
    check_epochs(message)
    if message.HasField("warm_start"):
        _initial_state(message, shared)
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
    """The definition, after every check that creating an agent makes. Raises `InvalidArgumentError` that names the field."""
    check_size(message.cmdp, limits)  # before it is copied
    return definition_of(completed(message, limits.episode_timeout_seconds))


def _shared_learner(message: model_pb2.AgentSpec) -> SafePsrl:
    """One learner for all agents with the same problem and options: its tables take time and memory to build."""
    problem = hashlib.blake2b(message.cmdp.SerializeToString(deterministic=True)).digest()
    key = problem, *(part.SerializeToString(deterministic=True) for part in (message.options, message.drift))
    learner = _learners.get(key)
    if learner is None:
        known = message.always_satisfiable if message.HasField("always_satisfiable") else None
        spec, options = cmdp_from_message(message.cmdp), options_from_message(message.options)
        drift = drift_from_message(message.drift)
        if known is None and spec.is_continuing:
            known = average_assumption_is_certain(spec)
        learner = _learners[key] = SafePsrl(spec, options, drift=drift, always_satisfiable=known)
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
        raise InvalidArgumentError(f"spec.options.{error.field}", f"{error.requirement} (got {error.value!r})") from None
    full.options.CopyFrom(model_pb2.SafePsrlOptions(**options))
    try:
        if not full.drift.HasField("detect"):
            full.drift.detect = table_entries(full.cmdp) <= MOST_WATCHED_ENTRIES
        drift = asdict(drift_from_message(full.drift))
    except SpecError as error:
        raise InvalidArgumentError(f"spec.drift.{error.field}", f"{error.requirement} (got {error.value!r})") from None
    full.drift.CopyFrom(model_pb2.DriftOptions(**drift))
    full.max_open_episodes = full.max_open_episodes or 1
    full.mode = full.mode or LIVE
    if full.cmdp.continuing:
        full.max_epoch_steps = full.max_epoch_steps or DEFAULT_MAX_EPOCH_STEPS
    full.episode_timeout_seconds = full.episode_timeout_seconds or default_timeout_seconds
    return full


def _fallback(message: model_pb2.AgentSpec, spec: CmdpSpec) -> Policy | None:
    return (
        checked_policy("spec.fallback_policy", message.fallback_policy, spec) if message.HasField("fallback_policy") else None
    )


def _initial_state(message: model_pb2.AgentSpec, learner: SafePsrl) -> AgentState:
    """The state that the agent begins with. Raises `InvalidArgumentError` that names the field."""
    if not message.HasField("warm_start"):
        return learner.initial_state()
    given = message.warm_start
    check_origin(given)
    try:
        return learner.initial_state(
            InitialCounts(
                array_of("transition_counts", given.transition_counts),
                array_of("signal_sums", given.signal_sums) if given.HasField("signal_sums") else None,
                array_of("visits", given.visits) if given.HasField("visits") else None,
            )
        )
    except SpecError as error:
        raise InvalidArgumentError(f"spec.warm_start.{error.field}", f"{error.requirement} (got {error.value!r:.60})") from None
