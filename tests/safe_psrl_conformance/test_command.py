"""`safe-psrl conformance` as a command: what it says, writes and returns."""

import json
from pathlib import Path

import pytest

from safe_psrl_cli.main import main
from safe_psrl_conformance import CHAPTERS, CHECKS
from safe_psrl_conformance import errors as chapter
from safe_psrl_conformance.check import Check, FailedError
from safe_psrl_conformance.wire import Wire


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["safe-psrl", "conformance", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_a_chapter_passes_and_is_written_to_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, server: str
) -> None:
    file = tmp_path / "verdicts.json"
    assert command(monkeypatch, "--target", server, "--only", "ordering", "--json", str(file)) == 0
    shown = capsys.readouterr()
    assert "pass    ordering.gap" in shown.out
    assert "4 passed, 0 failed, 0 skipped" in shown.out
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["passed"] is True
    assert {result["chapter"] for result in told["results"]} == {"ordering"}


def test_a_failure_reports_the_result_and_the_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, server: str
) -> None:
    def fail(_wire: Wire) -> None:
        raise FailedError("the moon is green")

    name = chapter.__name__.rpartition(".")[2]
    monkeypatch.setattr("safe_psrl_conformance.check.CHECKS", [Check(name, "moon", "the moon is yellow", fail)])
    file = tmp_path / "verdicts.json"
    assert command(monkeypatch, "--target", server, "--json", str(file)) == 1
    shown = capsys.readouterr().out
    assert "FAIL    errors.moon" in shown
    assert "the moon is green" in shown
    assert "demanded: the moon is yellow" in shown
    assert json.loads(file.read_text(encoding="utf-8"))["passed"] is False


def test_the_list_needs_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--list", "--target", "127.0.0.1:1") == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 2 * len(CHECKS)
    assert all(f"\n{name}." in "\n" + shown for name in CHAPTERS)


def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--only", "moons") == 2
    assert "there is no chapter 'moons'; the chapters are agents, episodes" in capsys.readouterr().err
    assert command(monkeypatch, "--target", "127.0.0.1:1", "--timeout", "1") == 3
    assert capsys.readouterr().err.startswith("safe-psrl: no answer from 127.0.0.1:1: is the service running there?")


def test_every_check_has_a_chapter_and_a_unique_name() -> None:
    assert {check.chapter for check in CHECKS} == set(CHAPTERS)
    assert len({(check.chapter, check.name) for check in CHECKS}) == len(CHECKS)
