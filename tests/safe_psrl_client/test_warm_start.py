"""Warm starts from logs and exports: the counts, by hand; and rows that contradict the specification."""

import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from safe_psrl_client import (
    Client,
    InvalidDocumentError,
    LoggedStep,
    spec_from_document,
    spec_to_document,
    warm_start_from_exports,
    warm_start_from_log,
)
from safe_psrl_client.transition_logs import count_file
from safe_psrl_client.warm_start import LogCounter
from safe_psrl_proto.v1 import model_pb2


def make_spec(*, learned: bool = False, **fields: Any) -> model_pb2.AgentSpec:
    """Two states, two actions, two steps; action 1 leads from state 1 to 0 only."""
    return spec_from_document(
        {
            "num_states": 2,
            "num_actions": 2,
            "horizon": 2,
            "reward": [[0.0, 1.0], [0.5, 1.0]],
            "reward_learned": learned,
            "constraints": [{"name": "energy", "cost": [[0.0, 1.0], [0.0, 1.0]], "cost_budget": 1.0, "satisfiable_cost": 0.1}],
            "support": [[[1, 1], [1, 1]], [[1, 1], [1, 0]]],
            **fields,
        }
    )


ROWS = [LoggedStep(0, 0, 1), LoggedStep(0, 0, 1), LoggedStep(1, 1, 0), LoggedStep(0, 1, 1)]


def test_counts_are_of_each_transition_times_the_weight() -> None:
    found = warm_start_from_log(ROWS, make_spec(), 0.5, source="june")
    assert list(found.transition_counts.shape) == [1, 2, 2, 2]
    assert list(found.transition_counts.values) == [0, 1.0, 0, 0.5, 0, 0, 0.5, 0]
    assert (found.rows, found.weight, found.source, len(found.digest)) == (4, 0.5, "june", 64)
    assert not found.HasField("visits")


def test_next_states_that_are_listed_are_counted_at_their_place() -> None:
    fields: dict[str, Any] = {"next_states": [[[1, -1], [0, 1]], [[0, 1], [0, -1]]]}
    spec = make_spec(**fields)
    spec.cmdp.ClearField("support")
    found = warm_start_from_log(ROWS, spec)
    assert list(found.transition_counts.values) == [2.0, 0, 0, 1.0, 0, 0, 1.0, 0]


def test_each_step_has_its_own_counts_if_not_stationary() -> None:
    spec = make_spec(stationary=False)
    found = warm_start_from_log([LoggedStep(0, 0, 1, step=1), LoggedStep(1, 1, 0, step=0)], spec)
    assert list(found.transition_counts.shape) == [2, 2, 2, 2]
    assert [i for i, value in enumerate(found.transition_counts.values) if value] == [6, 9]
    with pytest.raises(InvalidDocumentError, match="row 1: step is missing"):
        warm_start_from_log(ROWS, spec)


def test_learned_signals_are_summed() -> None:
    rows = [LoggedStep(0, 0, 1, 0.5, (0.25,)), LoggedStep(0, 0, 0, 1.0, (0.5,))]
    found = warm_start_from_log(rows, make_spec(learned=True), 2.0)
    assert list(found.visits.values) == [4.0, 0, 0, 0]
    assert list(found.signal_sums.values) == [3.0, 0, 0, 0, 1.5, 0, 0, 0]


BAD = {
    "state": (LoggedStep(2, 0, 1), "state must be from 0 to 1, got 2"),
    "action": (LoggedStep(0, -1, 1), "action must be from 0 to 1, got -1"),
    "support": (LoggedStep(1, 1, 1), "next_state 1 is outside the support of state 1, action 1"),
    "step": (LoggedStep(0, 0, 1, 0.0, step=2), "step must be from 0 to 1, got 2"),
    "available": (LoggedStep(0, 1, 1), "action 1 is not available in state 0"),
    "no reward": (LoggedStep(0, 0, 1), "reward is missing, but the agent learns it"),
    "reward": (LoggedStep(0, 0, 1, float("nan")), "reward must be from 0 to 1, got nan"),
    "costs": (LoggedStep(0, 0, 1, 0.5, (0.1, 0.2)), "costs must have 1 entries, one per constraint, got 2"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_row_that_contradicts_the_specification_is_refused_or_skipped(kind: str) -> None:
    row, reason = BAD[kind]
    spec = make_spec(learned=True, available_actions=[[True, False], [True, True]])
    rows = [LoggedStep(0, 0, 1, 0.5), row]
    with pytest.raises(InvalidDocumentError, match=f"1 rows contradict the specification; row 2: {reason}"):
        warm_start_from_log(rows, spec)
    assert warm_start_from_log(rows, spec, skip_bad=True).rows == 1


def test_a_log_without_rows_is_refused() -> None:
    with pytest.raises(InvalidDocumentError, match="has no row that fits"):
        warm_start_from_log([], make_spec())


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), 1e10])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(InvalidDocumentError, match="weight"):
        warm_start_from_log(ROWS, make_spec(), weight)


def test_it_goes_through_a_document() -> None:
    spec = make_spec(learned=True)
    spec.warm_start.CopyFrom(warm_start_from_log([LoggedStep(0, 0, 1, 0.5, (0.25,))], spec))
    assert spec_from_document(spec_to_document(spec)) == spec


CSV = "s,action,next_state,cost\n0,0,1,0.5\n0,0,1,\n1,one,0,0.5\n"
JSON_LINES = '{"s": 0, "action": 0, "next_state": 1}\n\n{"s": 0, "action": 0, "next_state": 1}\n{"s": 1, "next_state": 0}\n'


@pytest.mark.parametrize(("name", "text"), [("a.csv", CSV), ("a.jsonl", JSON_LINES)])
def test_files_are_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    counter, reported = LogCounter(make_spec()), list[int]()
    count_file(tmp_path / name, counter, ["energy"], {"state": "s"}, reported.append)
    assert (counter.rows, counter.bad_rows, reported) == (2, 1, [3])
    assert counter.first_bad.startswith("row 3: action ")
    assert list(counter.warm_start(1.0, "").transition_counts.values) == [0, 2.0, 0, 0, 0, 0, 0, 0]


def test_a_parquet_file_is_read(tmp_path: Path) -> None:
    """Numbers, floats, text and nulls, a column for each constraint, and columns that are no concern of ours."""
    columns = {
        "s": [0, 0, 1, None],
        "action": ["0", "0", "0", "0"],
        "next_state": [1.0, 1.0, 0.5, 1.0],
        "reward": [0.5, 1.0, 0.5, 0.5],
        "cost.energy": [0.25, 0.5, 0.5, 0.5],
        "operator": [b"\x00"] * 4,
    }
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    counter, reported = LogCounter(make_spec(learned=True)), list[int]()
    count_file(tmp_path / "a.parquet", counter, ["energy"], {"state": "s"}, reported.append)
    assert (counter.rows, counter.bad_rows, reported) == (2, 2, [4])
    assert counter.first_bad == "row 3: next_state must be a whole number, got 0.5"
    found = counter.warm_start(2.0, "a.parquet")
    assert list(found.transition_counts.values) == [0, 4.0, 0, 0, 0, 0, 0, 0]
    assert list(found.signal_sums.values) == [3.0, 0, 0, 0, 1.5, 0, 0, 0]


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_damaged_parquet_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"state": [0], "action": [0], "next_state": [1]}), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InvalidDocumentError, match=r"a\.parquet: cannot be read"):
        count_file(path, LogCounter(make_spec()), ["energy"])


MILLION: Final = 1_000_000
MOST_SECONDS: Final = 30.0  # of the processor


@pytest.mark.slow
def test_a_million_rows_are_counted_in_seconds(tmp_path: Path) -> None:
    columns = {name: [i // period % 2 for i in range(MILLION)] for name, period in (("state", 1), ("next_state", 4))}
    columns |= {"action": [0] * MILLION, "reward": [0.5] * MILLION, "cost": [0.5] * MILLION}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    counter, began = LogCounter(make_spec(learned=True)), time.process_time()
    count_file(tmp_path / "a.parquet", counter, ["energy"])
    assert time.process_time() - began < MOST_SECONDS
    assert (counter.rows, counter.bad_rows) == (MILLION, 0)
    assert list(counter.warm_start(1.0, "").transition_counts.values)[:2] == [MILLION / 4, MILLION / 4]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [("a.jsonl", "{", "line 1 is not JSON"), ("a.jsonl", "[]", "must be an object"), ("a.txt", "", "must be a file of")],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidDocumentError, match=reason):
        count_file(tmp_path / name, LogCounter(make_spec()), ["energy"])
    with pytest.raises(InvalidDocumentError, match="speed: is not a column"):
        count_file(tmp_path / name, LogCounter(make_spec()), ["energy"], {"speed": "v"})


COLUMNS = "has no column 'action': give its name in columns; the file has state, act, next_state"


@pytest.mark.parametrize("columns", [{}, {"step": "action"}], ids=["needed", "named"])
def test_a_column_that_is_missing_is_named(tmp_path: Path, columns: dict[str, str]) -> None:
    """Not as a mistake of every row."""
    text = tmp_path / "a.csv"
    text.write_text("state,act,next_state\n0,0,1\n", encoding="utf-8")
    parquet.write_table(pa.table({"state": [0], "act": [0], "next_state": [1]}), tmp_path / "a.parquet")
    for path in (text, tmp_path / "a.parquet"):
        with pytest.raises(InvalidDocumentError, match=COLUMNS):
            count_file(path, LogCounter(make_spec()), ["energy"], columns)


def test_a_byte_order_mark_belongs_to_no_column(tmp_path: Path) -> None:
    path, counter = tmp_path / "a.csv", LogCounter(make_spec())
    path.write_text("state,action,next_state\n0,0,1\n", encoding="utf-8-sig")
    count_file(path, counter, ["energy"])
    assert (counter.rows, counter.bad_rows) == (1, 0)


def test_the_mean_of_exports(client: Client, agent_name: str) -> None:
    """Agents that begin with known counts, and have played nothing: what is exported is what they began with."""
    spec, exports = make_spec(learned=True), []
    for i, count in enumerate((1, 3)):
        spec.warm_start.CopyFrom(warm_start_from_log([LoggedStep(0, 0, 1, 0.5, (0.25,))] * count, spec))
        client.create_agent(f"{agent_name[:100]}-{i}", spec)
        exports.append(client.export_agent(f"{agent_name[:100]}-{i}"))
    found = warm_start_from_exports(exports, spec, 0.5, source="cell/*")
    assert list(found.transition_counts.values) == [0, 1.0, 0, 0, 0, 0, 0, 0]
    assert (list(found.visits.values), found.signal_sums.values[0]) == ([1.0, 0, 0, 0], 0.5)
    assert (found.rows, found.source) == (4, "cell/*")
    unaware = warm_start_from_exports(exports, make_spec())
    assert not unaware.HasField("visits")
    with pytest.raises(InvalidDocumentError, match="has another problem"):
        warm_start_from_exports(exports, make_spec(stationary=False))


def test_an_agent_that_has_learned_nothing_is_refused(client: Client, agent_name: str) -> None:
    client.create_agent(agent_name, make_spec())
    with pytest.raises(InvalidDocumentError, match="learned nothing"):
        warm_start_from_exports([client.export_agent(agent_name)], make_spec())
