"""Links between pages, to files, headings and images lead somewhere."""

from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, Link, anchors, links, pages, problem_with


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [problem for link in links(page) if (problem := problem_with(link))] == []


def test_links_were_found() -> None:
    """So that a change of mark-up cannot empty these tests."""
    assert len(pages()) >= 30
    assert sum(len(links(page)) for page in pages()) >= 80


def test_a_broken_link_is_detected(tmp_path: Path) -> None:
    page = ROOT / "docs" / "README.md"
    assert problem_with(Link(page, "nothing.md")) == "docs/README.md: there is no nothing.md"
    assert problem_with(Link(page, "protocol.md#nowhere")) == "docs/README.md: protocol.md has no heading #nowhere"
    assert problem_with(Link(page, "../../../etc")) is not None
    assert problem_with(Link(page, "protocol.md#errors")) is None
    headings = tmp_path / "page.md"
    headings.write_text("# Two `words`, (so)\n# A\n```sh\n# not me\n```\n## A\n", encoding="utf-8")
    assert anchors(headings) == {"two-words-so", "a", "a-1"}


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link.target).resolve() for link in links(index)}
    assert {page for page in (ROOT / "docs").glob("*.md") if page != index} <= listed
    assert "docs/README.md" in {link.target for link in links(ROOT / "README.md")}
