"""Logs of what an agent saw, as `transition_logs` reads them."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safe_psrl_client.errors import InvalidDocumentError
from safe_psrl_proto.v1 import admin_pb2, events_pb2


@dataclass(frozen=True)
class TransitionLog:
    """Rows by column, and how many other transitions the agent has learned from."""

    columns: list[str]  # episode, step, state, action, next_state, reward, and cost.NAME for each constraint
    rows: list[list[float]]
    dropped: int

    def write(self, path: Path) -> None:
        """As .csv, .jsonl, or .parquet if pyarrow is installed. The file is complete or unchanged."""
        partial = path.with_name(path.name + ".partial")
        if path.suffix == ".csv":
            with partial.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([self.columns, *self.rows])
        elif path.suffix == ".jsonl":
            lines = [json.dumps(dict(zip(self.columns, row, strict=True))) + "\n" for row in self.rows]
            partial.write_text("".join(lines), encoding="utf-8")
        elif path.suffix == ".parquet":
            _write_parquet(partial, self.columns, self.rows)
        else:
            raise InvalidDocumentError(f"{path}: must be a file of .csv, .jsonl, .parquet")
        partial.replace(path)


def log_of(parts: Sequence[admin_pb2.ExportTransitionsResponse]) -> TransitionLog:
    """The log in the replies to ExportTransitions."""
    names = [f"cost.{name}" for part in parts for name in part.constraint_names]
    rows = [row for part in parts for steps in part.transitions for row in _rows(steps, len(names))]
    columns = ["episode", "step", "state", "action", "next_state", "reward", *names]
    return TransitionLog(columns, rows, sum(part.dropped for part in parts))


def _rows(steps: events_pb2.TransitionsObserved, width: int) -> Iterator[list[float]]:
    states = [steps.state, *steps.next_states[:-1]]
    moves = zip(states, steps.actions, steps.next_states, steps.rewards, strict=True)
    for i, (state, action, next_state, reward) in enumerate(moves):
        costs = steps.costs[i * width : (i + 1) * width]
        yield [steps.episode, steps.first_step + i, state, action, next_state, reward, *costs]


def _write_parquet(path: Path, columns: list[str], rows: list[list[float]]) -> None:
    try:
        from pyarrow import parquet, table  # noqa: PLC0415  # optional
    except ImportError:
        raise InvalidDocumentError(f"{path}: needs pyarrow: pip install 'safe-psrl[parquet]'") from None
    by_column: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(columns)}
    parquet.write_table(table(by_column), path)
