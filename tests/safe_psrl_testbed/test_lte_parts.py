"""The LTE cell without ns-3: its fading, its history, its kernel, and episodes over a network of coins."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from safe_psrl_cli.simulate import MAX_UES
from safe_psrl_testbed.kernels import ARRIVAL
from safe_psrl_testbed.lte import bindings
from safe_psrl_testbed.lte.fading import fading_trace, write_trace
from safe_psrl_testbed.lte.network_process import NetworkProcess
from safe_psrl_testbed.lte.settings import CellSettings
from safe_psrl_testbed.lte.simulation import kernel_rows
from safe_psrl_testbed.media import RULES, MediaHistory, Rule, best_within_budget
from safe_psrl_testbed.media_players import FixedRule, MediaPlayers


class CoinNetwork:
    """The paper's arrivals: whole media units, by a coin for each UE."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def advance(self, fast: Sequence[bool]) -> list[float]:
        return [float(self._generator.random() < ARRIVAL[0 if guaranteed else 1]) for guaranteed in fast]


def played(rule: Rule, episodes: int, ues: int = 4) -> MediaHistory:
    history = MediaHistory(ues)
    MediaPlayers(CoinNetwork(17), ues, seed=1).play(FixedRule(rule), history, episodes)
    return history


def test_episodes_begin_empty_and_last_the_horizon() -> None:
    history = played(RULES["always-fast"], 20)
    assert history.states.shape == (20, 11, 4)
    assert (history.states[:, 0] == 0).all()
    assert (history.states[:, -1] > 0).any()
    assert history.transition_counts.sum() == 20 * 10 * 4


def test_a_network_with_the_papers_arrivals_has_the_papers_kernel() -> None:
    for rule in ("always-fast", "always-slow"):
        for row in kernel_rows(played(RULES[rule], 300).transition_counts):
            if row["seen"] > 1000:
                assert row["cell"] == pytest.approx(row["paper"], abs=0.03), row
            elif not row["seen"]:
                assert sum(row["cell"].values()) == 0


def test_the_summaries_of_rules() -> None:
    summaries = {name: played(rule, 40).summary() for name, rule in RULES.items()}
    assert summaries["always-slow"]["cost"] == 0
    assert summaries["always-fast"]["constraint_regret"] == summaries["always-fast"]["constraint_regret_max"] == 40 * 5
    assert summaries["fast-at-first"]["constraint_regret_max"] == 0
    assert summaries["fast-below-half"]["over_budget"] == 40 * 4
    assert [name for name in RULES if summaries[name]["keeps_budget"]] == ["always-slow", "fast-at-first"]
    assert best_within_budget(summaries) == "fast-at-first"
    assert best_within_budget({"always-fast": summaries["always-fast"]}) is None


def test_the_greatest_constraint_regret_is_that_of_the_worst_ue_at_its_worst_time() -> None:
    history = MediaHistory(2)
    for fast in ([9, 5], [8, 5], [0, 6]):  # epochs of fast service, by UE
        actions = [np.array([0 if step < n else 1 for n in fast]) for step in range(10)]
        history.append([np.zeros(2, np.int64)] * 11, actions)
    assert history.constraint_regret.tolist() == [[4, 0], [7, 0], [2, 1]]
    told = history.summary()
    assert (told["constraint_regret"], told["constraint_regret_max"], told["over_budget"]) == (2, 7, 3)
    assert told["constraint_regret_max_settled"] is None  # nothing is known of what comes after 300 episodes


def test_fading_has_no_gain_in_the_mean_deep_fades_and_no_jump_where_it_repeats(tmp_path: Path) -> None:
    trace = fading_trace(np.random.default_rng(3), blocks=6, milliseconds=10_000, speed=1.0)
    assert trace.shape == (6, 10_000)
    assert 10 * np.log10((10 ** (trace / 10)).mean()) == pytest.approx(0, abs=1)
    assert trace.min() < -15
    power = 10 ** (trace / 10)
    steps = np.abs(np.diff(power, axis=1)).max(axis=1)
    assert (np.abs(power[:, 0] - power[:, -1]) <= steps).all()
    write_trace(trace, tmp_path / "trace.fad")
    read = np.loadtxt(tmp_path / "trace.fad")  # as ns-3 does: numbers between white space, a line a block
    np.testing.assert_allclose(read, trace, atol=1e-3)


@pytest.mark.parametrize("ues", [1, 4, 5, MAX_UES])
def test_a_cell_has_room_for_its_ues(ues: int) -> None:
    settings = CellSettings(ues=ues)
    assert settings.resource_blocks >= 1.5 * ues
    assert settings.unit_rate * settings.epoch_ms == settings.unit_bytes * 8 * 1000


def test_without_ns3_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(bindings.Ns3MissingError, match=r"pip install 'safe-psrl\[lte\]'"):
        NetworkProcess(CellSettings())
    assert not multiprocessing.active_children()


def test_moves_are_counted_by_how_far_they_go() -> None:
    counts = np.zeros((10, 2, 10), np.int64)
    counts[2, 0, [1, 2, 3, 5]] = [1, 2, 3, 4]
    counts[0, 1, [0, 1]] = [3, 1]
    rows = {(row["service"], row["buffer"]): row for row in kernel_rows(counts)}
    assert rows["fast", "not empty"]["cell"] == pytest.approx({"down": 0.1, "stay": 0.2, "up": 0.3, "up more": 0.4})
    assert rows["fast", "not empty"]["paper"] == pytest.approx({"down": 0.08, "stay": 0.74, "up": 0.18, "up more": 0})
    assert rows["slow", "empty"]["cell"] == {"down": 0, "stay": 0.75, "up": 0.25, "up more": 0}
    assert rows["slow", "empty"]["seen"] == 4
