"""What an agent begins with: counts from logged transitions, or from other agents' exports. Needs no numpy.

    spec = spec_from_document(document)
    spec.warm_start.CopyFrom(warm_start_from_log(rows, spec, weight=0.5, source="june.csv"))
    client.create_agent("cell/7", spec)

A log is valid whatever policy chose its actions, as long as the next state depends on state and action alone.
"""

import hashlib
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_client.exports import unseal
from safe_psrl_proto.v1 import events_pb2, model_pb2

MAX_WEIGHT: Final = 1e9
MAX_SOURCE: Final = 500  # characters, the protocol's limit
NO_STATE: Final = -1


class LoggedStep(NamedTuple):
    """One row of a log. `step`, from 0, is needed where kernel or signals differ by step; signals where they are learned."""

    state: int
    action: int
    next_state: int
    reward: float | None = None
    costs: Sequence[float] = ()
    step: int | None = None


class Shapes(NamedTuple):
    """The sizes of an agent's tables, from its specification."""

    counts: tuple[int, int, int, int]  # [1|H, S, A, W]
    signals: tuple[int, int, int, int]  # [1+M, 1|H, S, A]
    learns_reward: bool
    learns_costs: bool

    @property
    def learns_signals(self) -> bool:
        return self.learns_reward or self.learns_costs


def shapes_of(cmdp: model_pb2.CmdpSpec) -> Shapes:
    """Raises `InvalidDocumentError` if a size is missing."""
    pair = cmdp.num_states, cmdp.num_actions
    if min(*pair, cmdp.continuing or cmdp.horizon, len(cmdp.constraints)) < 1:
        raise InvalidDocumentError("the specification needs num_states, num_actions, horizon and constraints")
    width = cmdp.next_states.shape[-1] if cmdp.HasField("next_states") and cmdp.next_states.shape else cmdp.num_states
    tables = [cmdp.reward, *(constraint.cost for constraint in cmdp.constraints)]
    steps = cmdp.horizon if any(len(table.shape) > 2 for table in tables) else 1
    return Shapes(
        counts=(cmdp.horizon if cmdp.non_stationary else 1, *pair, width),
        signals=(len(tables), steps, *pair),
        learns_reward=cmdp.reward_learned or any(cmdp.unknown_rewards.values),
        learns_costs=any(constraint.learned or any(constraint.unknown_costs.values) for constraint in cmdp.constraints),
    )


class LogCounter:
    """Counts the rows of a log for one specification. A row that contradicts it is counted apart, and the first is kept."""

    def __init__(self, spec: model_pb2.AgentSpec) -> None:
        self._shapes, self._horizon = shapes_of(spec.cmdp), spec.cmdp.horizon or math.inf
        self._names = [constraint.name for constraint in spec.cmdp.constraints]
        self._places = _places(spec.cmdp, self._shapes)
        self._available = list(spec.cmdp.available_actions.values) if spec.cmdp.HasField("available_actions") else []
        signals = math.prod(self._shapes.signals) if self._shapes.learns_signals else 0
        self._counts, self._sums = array("d", bytes(8 * math.prod(self._shapes.counts))), array("d", bytes(8 * signals))
        self._visits = array("d", bytes(8 * (signals // self._shapes.signals[0])))
        self._digest = hashlib.sha256()
        self.rows = self.bad_rows = 0
        self.first_bad = ""  # which row, and why

    def add(self, row: LoggedStep) -> None:
        """Count one row, or keep why it cannot be counted."""
        reason = self._contradiction(row)
        if reason:
            self.refuse(reason)
        else:
            self._count(row)
            self.rows += 1
        self._digest.update(repr(tuple(row)).encode())

    def refuse(self, reason: str) -> None:
        """Count a row as one that contradicts the specification."""
        self.first_bad = self.first_bad or f"row {self.rows + self.bad_rows + 1}: {reason}"
        self.bad_rows += 1

    def warm_start(self, weight: float, source: str, digest: str = "") -> model_pb2.WarmStart:
        """What was counted, times `weight`. `digest` is that of the file; by default of the rows."""
        if not self.rows:
            raise InvalidDocumentError(f"{source or 'the log'} has no row that fits the specification" + self._first())
        tables = (self._counts, self._sums, self._visits)
        return _warm_start(self._shapes, tables, self.rows, weight, source, digest or self._digest.hexdigest())

    def _first(self) -> str:
        return f": {self.first_bad}" if self.first_bad else ""

    def _contradiction(self, row: LoggedStep) -> str:
        """Why the row is impossible; empty if it is not."""
        (steps, num_states, num_actions, _), shapes = self._shapes.counts, self._shapes
        for name, value, most in (
            ("state", row.state, num_states),
            ("action", row.action, num_actions),
            ("next_state", row.next_state, num_states),
        ):
            if not 0 <= value < most:
                return f"{name} must be from 0 to {most - 1}, got {value}"
        needs_step = steps > 1 or (shapes.learns_signals and shapes.signals[1] > 1)
        if row.step is None and needs_step:
            return "step is missing, but the problem differs by step"
        if row.step is not None and not 0 <= row.step < self._horizon:
            return f"step must be from 0 to {self._horizon - 1}, got {row.step}"
        if self._available and not self._available[row.state * num_actions + row.action]:
            return f"action {row.action} is not available in state {row.state}"
        if self._place(row) < 0:
            return f"next_state {row.next_state} is outside the support of state {row.state}, action {row.action}"
        return self._signal_contradiction(row)

    def _signal_contradiction(self, row: LoggedStep) -> str:
        if self._shapes.learns_reward and row.reward is None:
            return "reward is missing, but the agent learns it"
        if len(row.costs) != len(self._names) and (row.costs or self._shapes.learns_costs):
            return f"costs must have {len(self._names)} entries, one per constraint, got {len(row.costs)}"
        for name, value in zip(("reward", *self._names), (row.reward or 0.0, *row.costs), strict=False):
            if not 0 <= value <= 1:
                return f"{name} must be from 0 to 1, got {value:g}"
        return ""

    def _pair(self, row: LoggedStep, steps: int) -> int:
        """The index of its step, state and action in a table with `steps`."""
        step = row.step % steps if row.step else 0
        return (step * self._shapes.counts[1] + row.state) * self._shapes.counts[2] + row.action

    def _place(self, row: LoggedStep) -> int:
        """The index of the row's entry in the counts; -1 outside the support."""
        steps, *_, width = self._shapes.counts
        pair = self._pair(row, steps)
        if self._places is None:
            return pair * width + row.next_state
        given = len(self._places) // (math.prod(self._shapes.counts[1:3]) * width)
        first = self._pair(row, given) * width
        states = self._places[first : first + width]
        return pair * width + states.index(row.next_state) if row.next_state in states else NO_STATE

    def _count(self, row: LoggedStep) -> None:
        self._counts[self._place(row)] += 1.0
        if not self._visits:
            return
        pair = self._pair(row, self._shapes.signals[1])
        self._visits[pair] += 1.0
        values = (row.reward or 0.0, *(row.costs or [0.0] * len(self._names)))
        for n, value in enumerate(values):
            self._sums[n * len(self._visits) + pair] += value


def warm_start_from_log(
    rows: Iterable[LoggedStep],
    spec: model_pb2.AgentSpec,
    weight: float = 1.0,
    *,
    source: str = "",
    skip_bad: bool = False,
) -> model_pb2.WarmStart:
    """The counts of `rows` times `weight`. Raises `InvalidDocumentError` if a row contradicts `spec`, unless `skip_bad`."""
    counter = LogCounter(spec)
    for row in rows:
        counter.add(row)
    if counter.bad_rows and not skip_bad:
        raise InvalidDocumentError(f"{counter.bad_rows} rows contradict the specification; {counter.first_bad}")
    return counter.warm_start(weight, source)


def warm_start_from_exports(
    exports: Sequence[bytes], spec: model_pb2.AgentSpec, weight: float = 1.0, *, source: str = ""
) -> model_pb2.WarmStart:
    """The mean of what exported agents learned, times `weight`. Their problems must have the same tables as `spec`.

    Signals that `spec` learns and an exported agent does not are left to their guess.
    """
    if not exports:
        raise InvalidDocumentError("there is no agent to start from")
    shapes, digest, rows = shapes_of(spec.cmdp), hashlib.sha256(), 0
    sizes = math.prod(shapes.counts), math.prod(shapes.signals), math.prod(shapes.signals[1:])
    sums = [array("d", bytes(8 * size)) for size in sizes]
    for content in exports:
        snapshot = events_pb2.Snapshot.FromString(unseal(content))
        _check_same_problem(spec.cmdp, snapshot.spec.cmdp)
        digest.update(hashlib.sha256(content).digest())
        rows += snapshot.totals.transitions + snapshot.spec.warm_start.rows
        wanted = [snapshot.transition_counts]
        if shapes.learns_signals and shapes_of(snapshot.spec.cmdp).learns_signals:
            wanted += [snapshot.signal_sums, snapshot.visits]
        for total, packed in zip(sums, wanted, strict=False):
            for i, value in enumerate(_unpacked(packed, len(total))):
                total[i] += value
    if not rows:
        raise InvalidDocumentError(f"{source or 'the exported agent'} has learned nothing yet")
    means = [array("d", [value / len(exports) for value in total]) for total in sums]
    known = means if shapes.learns_signals and any(means[2]) else [means[0], array("d"), array("d")]
    return _warm_start(shapes, known, rows, weight, source, digest.hexdigest())


def _check_same_problem(wanted: model_pb2.CmdpSpec, given: model_pb2.CmdpSpec) -> None:
    """Raises `InvalidDocumentError` if the tables of one do not mean the same for the other."""
    ours, theirs = shapes_of(wanted), shapes_of(given)
    if ours.counts != theirs.counts or wanted.next_states != given.next_states:
        sizes = f"{list(theirs.counts)}, not {list(ours.counts)}"
        raise InvalidDocumentError(f"the agent to start from has another problem: its transition counts are {sizes}")
    if not (ours.learns_signals and theirs.learns_signals):
        return
    names = [constraint.name for constraint in wanted.constraints], [constraint.name for constraint in given.constraints]
    if ours.signals != theirs.signals or names[0] != names[1]:
        raise InvalidDocumentError("the agent to start from has another problem: its rewards or constraints differ")


def _places(cmdp: model_pb2.CmdpSpec, shapes: Shapes) -> list[int] | None:
    """The next state of each entry of the counts, -1 where none is; None if all are possible."""
    if cmdp.HasField("next_states"):
        places = list(cmdp.next_states.values)
    elif cmdp.HasField("support"):
        places = [i % shapes.counts[-1] if possible else NO_STATE for i, possible in enumerate(cmdp.support.values)]
    else:
        return None
    row = math.prod(shapes.counts[1:])
    if len(places) not in {row, shapes.counts[0] * row}:
        raise InvalidDocumentError("support or next_states: has the wrong size for its states and actions")
    return places


def _warm_start(
    shapes: Shapes, tables: Sequence["array[float]"], rows: int, weight: float, source: str, digest: str
) -> model_pb2.WarmStart:
    if not 0 < weight <= MAX_WEIGHT:
        raise InvalidDocumentError(f"weight = {weight}: must be above 0 and at most {MAX_WEIGHT:g}")
    counts, sums, visits = ([weight * value for value in table] for table in tables)
    start = model_pb2.WarmStart(
        transition_counts=model_pb2.Table(shape=shapes.counts, values=counts),
        source=source[:MAX_SOURCE],
        rows=rows,
        weight=weight,
        digest=digest,
    )
    if visits:
        start.signal_sums.CopyFrom(model_pb2.Table(shape=shapes.signals, values=sums))
        start.visits.CopyFrom(model_pb2.Table(shape=shapes.signals[1:], values=visits))
    return start


def _unpacked(packed: events_pb2.PackedArray, size: int) -> "array[Any]":
    values: array[Any] = array("q" if packed.dtype == "<i8" else "d")
    try:
        values.frombytes(zlib.decompressobj().decompress(packed.data, 8 * size + 1))
    except (zlib.error, ValueError) as error:
        raise InvalidDocumentError(f"this exported agent is damaged: {error}") from None
    if len(values) != size:
        raise InvalidDocumentError(f"this exported agent is damaged: a table has {len(values)} entries, not {size}")
    if sys.byteorder == "big":
        values.byteswap()
    return values
