"""Measured tables in a page."""

import json
from pathlib import Path

from tests.service_fixtures import Command

from safe_psrl_experiments.bench.measure import as_json, fill_page, judged, judged_times

PAGE = "# Speed\n\n<!-- bench serve begin -->\nold\n<!-- bench serve end -->\n\nafter\n"


def test_a_table_takes_the_place_of_the_one_before() -> None:
    results = [
        judged_times("steps", [1_000.0, 3_000.0, 2_000.0], [4_000.0], "bare echo", "1/s", (">=", 0.7)),
        judged("latency", 2.0, 4.0, "bare echo", "ms"),
    ]
    document = as_json(results)
    page = fill_page(PAGE, "serve", document)
    assert "old" not in page
    assert "| steps | 2,000.0 1/s | 1,000.0 to 3,000.0 | 4,000.0 1/s: bare echo | 0.50 | >= 0.7: **missed** |" in page
    assert "| latency | 2.0 ms |  | 4.0 ms: bare echo | 0.50 |  |" in page
    assert document["machine"] in page
    assert page.startswith("# Speed\n")
    assert page.endswith("\n\nafter\n")
    assert fill_page(page, "serve", document) == page


def test_a_page_without_a_place_is_left_alone(safe_psrl: Command, tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "plan.json"
    page.write_text(PAGE, encoding="utf-8")
    results.write_text(json.dumps(as_json([])), encoding="utf-8")
    ended = safe_psrl("bench", "page", str(page), str(results))
    assert ended.code == 2
    assert "has no lines <!-- bench plan begin -->" in ended.err.replace("\n", " ")
    assert page.read_text(encoding="utf-8") == PAGE
