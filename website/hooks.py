"""MkDocs hooks: add the generated reference pages, and resolve links that lead out of `docs/`.

A link to a file or directory of the repository leads to a page with its content, so the site needs no other host.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from website import command_page, python_pages, server_pages  # noqa: E402  # needs the path above

LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCED: Final = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
LANGUAGES: Final = {
    ".md": "markdown",
    ".py": "python",
    ".toml": "toml",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".js": "javascript",
}
GENERATED: Final = {  # by the section of docs/reference/README.md, which stands for the page where there is no site
    "#command-line": "reference/command.md",
    "#configuration": "reference/configuration.md",
    "#metrics": "reference/metrics.md",
    "#python-api": "reference/client.md",
}
SKIPPED: Final = {"__pycache__", "node_modules"}
MAX_LINES: Final = 400  # longer files, such as dashboards, are listed without a page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for every file or directory outside of `docs/` that a page links to."""
    generated = {
        "reference/command.md": command_page.content(),
        "reference/client.md": python_pages.client(),
        "reference/library.md": python_pages.library(),
        "reference/testbed.md": python_pages.testbed(),
        "reference/configuration.md": server_pages.configuration(),
        "reference/metrics.md": server_pages.metrics(),
        **{f"reference/proto/{path.stem}.md": server_pages.contract(path) for path in server_pages.CONTRACTS},
    }
    for page in [file for file in files if file.is_documentation_page()]:
        for target in _outside_targets(page.content_string, page.src_uri):
            generated.update(_source_pages(target))
    for uri, content in generated.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Point links that lead out of `docs/` to the pages of their targets."""
    uri = page.file.src_uri
    if uri.startswith(("source/", "reference/")):  # generated with links of the site
        return markdown

    def resolved(found: re.Match[str]) -> str:
        if (page := GENERATED.get(found[2] or "")) and found[1].endswith("reference/README.md"):
            return posixpath.relpath(page, posixpath.dirname(uri) or ".")
        target = _target(found[1], uri)
        if target is None:
            return found[0]
        return posixpath.relpath(_page_of(target), posixpath.dirname(uri) or ".") + (found[2] or "")

    return LINK.sub(resolved, markdown)


def _target(link: str, uri: str) -> str | None:
    """The repository path of a link of the page `uri`, if it leads out of `docs/`."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link))
    return None if path.startswith("docs/") else path


def _outside_targets(markdown: str, uri: str) -> set[str]:
    links = LINK.findall(FENCED.sub("", markdown))
    return {target for link, _ in links if (target := _target(link, uri)) is not None}


def _page_of(target: str) -> str:
    if target.endswith(".proto"):
        return f"reference/proto/{Path(target).stem}.md"
    if target == "proto/safe_psrl_proto/v1":
        return "reference/proto/control.md"
    return f"source/{target}/index.md" if (ROOT / target).is_dir() else f"source/{target}.md"


def _source_pages(target: str) -> dict[str, str]:
    """Pages by their address: the file's, or those of a directory's files and a list of them."""
    if target.startswith("proto/"):
        return {}
    if not (ROOT / target).is_dir():
        return {_page_of(target): _file_page(target)}
    shown = _files(target)
    pages = {_page_of(path): _file_page(path) for path in shown if _is_short(path)}
    rows = [
        f"- [{path}]({posixpath.relpath(_page_of(path), f'source/{target}')})" if _is_short(path) else f"- {path}"
        for path in shown
    ]
    pages[_page_of(target)] = f"{_title(target)}Files of the repository:\n\n" + "\n".join(rows) + "\n"
    return pages


def _file_page(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    return f"{_title(path)}````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"


def _title(path: str) -> str:
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"


def _is_short(path: str) -> bool:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def _files(directory: str) -> list[str]:
    """Sources under `directory`: no hidden files, which can hold secrets, and nothing installed or compiled."""
    paths = sorted(path.relative_to(ROOT) for path in (ROOT / directory).rglob("*") if path.is_file())
    return [str(path) for path in paths if not any(part.startswith(".") or part in SKIPPED for part in path.parts)]
