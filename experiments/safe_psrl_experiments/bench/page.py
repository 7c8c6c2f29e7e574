"""Tables of results in a Markdown page, each between `<!-- bench NAME begin -->` and `<!-- bench NAME end -->`."""

from typing import Any

HEAD = "| what | measured | spread | limit | ratio | bar |\n|---|---:|---:|---|---:|---|\n"


def fill_page(page: str, name: str, document: dict[str, Any]) -> str:
    """`page` with the table of `name` replaced. Raises ValueError if the page has no place for it."""
    begin, end = f"<!-- bench {name} begin -->", f"<!-- bench {name} end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"has no lines {begin} and {end}")
    rows = "".join(f"| {' | '.join(_cells(result))} |\n" for result in document["results"])
    return f"{before}{begin}\n{document['machine']}.\n\n{HEAD}{rows}{end}{after}"


def _cells(result: dict[str, Any]) -> list[str]:
    bar = result["bar"]
    verdict = "" if bar is None else f"{bar}: {'met' if result['ok'] else '**missed**'}"
    times = result["times"]
    spread = f"{min(times):,.1f} to {max(times):,.1f}" if times else ""
    limit = f"{result['limit']:,.1f} {result['unit']}: {result['limit_name']}"
    return [result["name"], f"{result['value']:,.1f} {result['unit']}", spread, limit, f"{result['ratio']:.2f}", verdict]
