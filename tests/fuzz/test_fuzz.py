"""Nothing that can be sent crashes the server, hangs it, is answered INTERNAL, or changes anything by being refused."""

import re
from pathlib import Path

import pytest

from safe_psrl import warm_up
from safe_psrl_server.logs import set_up_logs
from tests.fuzz import fuzz, ground
from tests.fuzz.careless import MISTAKES, Mistake, asleep
from tests.fuzz.generation import WEIGHTS
from tests.fuzz.inputs import METHODS, Input, load, save
from tests.system.server_process import show

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


@pytest.fixture(scope="module", autouse=True)
def ready() -> None:
    set_up_logs("console", "error")
    warm_up()


@pytest.mark.slow
def test_a_few_thousand_inputs_find_nothing() -> None:
    """The short form of `make test-fuzz`."""
    report = fuzz.run(seed=2026, inputs=3000)
    show("\n".join(report.lines()))
    assert [finding.text for finding in report.findings] == []
    assert report.inputs >= 3000
    assert set(report.kinds) == set(WEIGHTS)
    assert set(report.methods) == set(METHODS)
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNAUTHENTICATED"} <= set(report.codes)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_was_found_once_is_not_found_again(path: Path) -> None:
    assert fuzz.run_again(load(path)) == ""


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_careless_server_is_found_out(mistake: Mistake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Within a few thousand inputs; and the file that is kept shows it again."""
    mistake(monkeypatch)
    monkeypatch.setattr(fuzz, "MOST_FINDINGS", 1)
    if mistake is asleep:
        monkeypatch.setattr(ground, "CALL_SECONDS", 3.0)
    report = fuzz.run(seed=1, inputs=6000)
    assert report.findings, f"{mistake.__doc__} But nothing was found in {report.inputs} inputs."
    finding = report.findings[0]
    assert re.search(MISTAKES[mistake], finding.text)
    show(f"{mistake.__name__}: after {report.inputs} inputs: {finding.text}")
    fuzz.keep(finding, tmp_path / "finding.json")
    assert re.search(MISTAKES[mistake], fuzz.run_again(load(tmp_path / "finding.json")))


def test_inputs_are_kept_as_they_are(tmp_path: Path) -> None:
    given = [Input("edges", "grpc", 3, (b"", b"\xff\0"), "/a/B", "", (("authorization", "x"), ("y-bin", b"\xff")))]
    save(given, "nothing", tmp_path / "case.json")
    assert load(tmp_path / "case.json") == given


def test_the_same_seed_gives_the_same_inputs() -> None:
    first, second = (fuzz.run(seed=9, inputs=60) for _ in range(2))
    assert (first.kinds, first.methods, first.codes) == (second.kinds, second.methods, second.codes)
