"""Logs of transitions as files: .csv with a heading, .jsonl with an object a line, .parquet if pyarrow is installed.

The columns are `state`, `action`, `next_state`, and optionally `step`, `reward`, and `cost.NAME` for each constraint, or
`cost` if there is one; another name of a column is given by `columns`.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_client.warm_start import LogCounter, LoggedStep

SUFFIXES: Final = (".csv", ".jsonl", ".parquet")
REQUIRED: Final = ("state", "action", "next_state")
MOST_NAMED: Final = 20  # columns in an error
REPORT_ROWS: Final = 10_000  # rows between two reports of progress


def count_file(
    path: Path,
    counter: LogCounter,
    constraints: Sequence[str],
    columns: Mapping[str, str] | None = None,
    report: Callable[[int], None] = lambda _rows: None,
) -> None:
    """Count the rows of a log. `columns` has the file's names by ours. Raises `InvalidDocumentError` if it is not a log."""
    names = columns_of(constraints, columns or {})
    needed = {names[ours] for ours in (*REQUIRED, *(columns or {}))}
    seen = 0
    for fields in _rows(path, set(names.values()), needed):
        try:
            ours = {ours: fields[theirs] for ours, theirs in names.items() if theirs in fields}
            counter.add(row_of(ours, constraints))
        except ValueError as error:
            counter.refuse(str(error))
        seen += 1
        if seen % REPORT_ROWS == 0:
            report(seen)
    report(seen)


def columns_of(constraints: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """The file's names of all columns, by ours. Raises `InvalidDocumentError` for a name that is not a column."""
    known = ["state", "action", "next_state", "step", "reward", *(f"cost.{name}" for name in constraints)]
    known += ["cost"] if len(constraints) == 1 else []
    for name in columns:
        if name not in known:
            raise InvalidDocumentError(f"{name}: is not a column; the columns are {', '.join(known)}")
    return {name: columns.get(name, name) for name in known}


def _rows(path: Path, wanted: AbstractSet[str], needed: AbstractSet[str]) -> Iterator[Mapping[str, Any]]:
    if path.suffix not in SUFFIXES:
        raise InvalidDocumentError(f"{path}: must be a file of {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, wanted, needed)
        return
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets write a byte order mark
            yield from _csv_rows(path, file, needed) if path.suffix == ".csv" else _json_rows(path, file)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidDocumentError(f"{path}: cannot be read: {error}") from None


def _csv_rows(path: Path, lines: Iterator[str], needed: AbstractSet[str]) -> Iterator[Mapping[str, Any]]:
    rows = csv.DictReader(lines)
    _check_columns(path, rows.fieldnames or (), needed)
    yield from rows


def _check_columns(path: Path, found: Sequence[str], needed: AbstractSet[str]) -> None:
    for name in sorted(needed - {*found}):
        has = ", ".join(found[:MOST_NAMED]) or "none"
        raise InvalidDocumentError(f"{path}: has no column {name!r}: give its name in columns; the file has {has}")


def _json_rows(path: Path, lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidDocumentError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise InvalidDocumentError(f"{path}: line {number} must be an object")
        yield fields


def _parquet_rows(path: Path, wanted: AbstractSet[str], needed: AbstractSet[str]) -> Iterator[Mapping[str, Any]]:
    """The columns that are `wanted` only: a log may have many others."""
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415  # optional
    except ImportError:
        raise InvalidDocumentError(f"{path}: needs pyarrow: pip install 'safe-psrl[parquet]'") from None
    try:
        file = parquet.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names, needed)
        columns = [name for name in file.schema_arrow.names if name in wanted]
        for batch in file.iter_batches(columns=columns):
            yield from batch.to_pylist()
    except (ArrowInvalid, OSError) as error:
        raise InvalidDocumentError(f"{path}: cannot be read: {error}") from None


def row_of(fields: Mapping[str, Any], constraints: Sequence[str]) -> LoggedStep:
    """A row from values by name: text or numbers. Costs are `cost` where there is one constraint, or `cost.NAME`.

    Raises a ValueError whose message describes the problem.
    """
    whole = {name: _whole(name, fields.get(name)) for name in ("state", "action", "next_state")}
    step, reward = fields.get("step"), fields.get("reward")
    named = ["cost" if len(constraints) == 1 and "cost" in fields else f"cost.{name}" for name in constraints]
    costs = [_number(name, fields[name]) for name in named if fields.get(name) not in (None, "")]
    return LoggedStep(
        **whole,
        reward=None if reward in (None, "") else _number("reward", reward),
        costs=tuple(costs),
        step=None if step in (None, "") else _whole("step", step),
    )


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if not number.is_integer():
        raise ValueError(f"{name} must be a whole number, got {value!r:.60}")
    return int(number)


def _number(name: str, value: Any) -> float:
    if value is None or value == "":
        raise ValueError(f"{name} is missing")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r:.60}") from None
