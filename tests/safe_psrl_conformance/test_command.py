"""`safe-psrl conformance` as a command: what it says, writes and returns."""

import json
from pathlib import Path

import pytest

from safe_psrl_conformance import CHAPTERS, CHECKS
from safe_psrl_conformance import errors as chapter
from safe_psrl_conformance.check import Check, FailedError
from safe_psrl_conformance.wire import Wire
from tests.service_fixtures import Command


def test_a_chapter_passes_and_is_written_to_a_file(safe_psrl: Command, tmp_path: Path, server: str) -> None:
    file = tmp_path / "verdicts.json"
    ended = safe_psrl("conformance", "--target", server, "--only", "ordering", "--json", str(file))
    assert ended.code == 0
    assert "pass    ordering.gap" in ended.out
    assert "4 passed, 0 failed, 0 skipped" in ended.out
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["passed"] is True
    assert {result["chapter"] for result in told["results"]} == {"ordering"}


def test_a_failure_reports_the_result_and_the_demand(
    safe_psrl: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str
) -> None:
    def fail(_wire: Wire) -> None:
        raise FailedError("the moon is green")

    name = chapter.__name__.rpartition(".")[2]
    monkeypatch.setattr("safe_psrl_conformance.check.CHECKS", [Check(name, "moon", "the moon is yellow", fail)])
    file = tmp_path / "verdicts.json"
    ended = safe_psrl("conformance", "--target", server, "--json", str(file))
    assert ended.code == 1
    for part in ("FAIL    errors.moon", "the moon is green", "required: the moon is yellow"):
        assert part in ended.out
    assert json.loads(file.read_text(encoding="utf-8"))["passed"] is False


def test_the_list_needs_no_server(safe_psrl: Command) -> None:
    ended = safe_psrl("conformance", "--list", "--target", "127.0.0.1:1")
    assert ended.code == 0
    assert ended.out.count("\n") == 2 * len(CHECKS)
    assert all(f"\n{name}." in "\n" + ended.out for name in CHAPTERS)


def test_mistakes_are_one_line(safe_psrl: Command) -> None:
    unknown = safe_psrl("conformance", "--only", "moons")
    assert unknown.code == 2
    assert "there is no chapter 'moons'; the chapters are agents, episodes" in unknown.err
    away = safe_psrl("conformance", "--target", "127.0.0.1:1", "--timeout", "1")
    assert away.code == 3
    assert away.err == "safe-psrl: no service at 127.0.0.1:1: start it with safe-psrl serve\n"


def test_every_check_has_a_chapter_and_a_unique_name() -> None:
    assert {check.chapter for check in CHECKS} == set(CHAPTERS)
    assert len({(check.chapter, check.name) for check in CHECKS}) == len(CHECKS)
