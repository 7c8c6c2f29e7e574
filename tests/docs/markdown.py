"""Markdown as GitHub reads it: links, and the anchors of headings."""

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
FENCED: Final = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
INLINE_CODE: Final = re.compile(r"`[^`\n]*`")
LINK: Final = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#{1,6} +(.+?)\s*$", flags=re.MULTILINE)


class Link(NamedTuple):
    """Where a page leads."""

    page: Path
    target: str


def pages() -> list[Path]:
    """Every Markdown file of the project."""
    folders = ("client", "deploy", "docs", "examples", "experiments", "proto", "server", "tests")
    nested = [page for folder in folders for page in (ROOT / folder).rglob("*.md") if "node_modules" not in page.parts]
    return sorted([*ROOT.glob("*.md"), *nested])


def links(page: Path) -> list[Link]:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"\[`([^`\]]*)`\]", r"[\1]", text)  # code as the words of a link is a link
    return [Link(page, target) for target in LINK.findall(INLINE_CODE.sub("", text))]


def anchors(page: Path) -> set[str]:
    """Of the headings, in GitHub's spelling; those that come again get a number."""
    found: dict[str, int] = {}
    result = set()
    for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        again = found.get(anchor, 0)
        found[anchor] = again + 1
        result.add(f"{anchor}-{again}" if again else anchor)
    return result


def problem_with(link: Link) -> str | None:
    """Why the link leads nowhere, or None if it does lead somewhere. Addresses elsewhere are not asked."""
    if link.target.startswith(("https://", "http://", "mailto:")):
        return None
    path, _, anchor = link.target.partition("#")
    file = (link.page.parent / path).resolve() if path else link.page
    if not file.exists():
        return f"{link.page.relative_to(ROOT)}: there is no {path}"
    if not file.is_relative_to(ROOT):
        return f"{link.page.relative_to(ROOT)}: {path} is outside of the project"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return f"{link.page.relative_to(ROOT)}: {file.name} has no heading #{anchor}"
    return None
