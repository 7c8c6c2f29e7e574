"""What was done to an agent: the list of its log's entries, and the banner for drift."""

from collections.abc import Sequence
from typing import Final

from safe_psrl_console.agent_history import Entry
from safe_psrl_console.controls import Text, block, button
from safe_psrl_console.fleet import WatchedAgent

SHOWN_ENTRIES: Final = 20
SIGNS: Final = {"created": "+", "updated": "✎", "paused": "❚❚", "resumed": "▶", "imported": "↓", "drift": "≠", "guarded": "❚❚"}


class LogCard:
    """The latest entries first; all of them on request."""

    def __init__(self) -> None:
        self._entries: Sequence[Entry] | None = None
        self._all = False
        with block("section", "card events"):
            Text("h2", "History")
            self._list = block("ol")
            self._more = button("", self._show_all, "plain")

    def show(self, entries: Sequence[Entry]) -> None:
        """`entries`: oldest first."""
        if entries == self._entries:
            return
        self._entries = entries
        self._draw()

    def _draw(self) -> None:
        entries = list(reversed(self._entries or ()))
        shown = entries if self._all else entries[:SHOWN_ENTRIES]
        self._list.clear()
        with self._list:
            for entry in shown:
                _show_entry(entry)
        self._more.set_text(f"Show all {len(entries):,}")
        self._more.set_visibility(len(shown) < len(entries))

    def _show_all(self) -> None:
        self._all = True
        self._draw()


def _show_entry(entry: Entry) -> None:
    with block("li", f"is-{entry.kind}"):
        Text("i", SIGNS.get(entry.kind, "•")).props("aria-hidden=true")
        Text("b", f"{entry.title}, after episode {entry.episode:,}" if entry.episode else entry.title)
        Text("time", entry.time)
        if entry.reason:
            Text("p", entry.reason, "reason")
        for detail in ("; ".join(entry.details),) if entry.kind == "drift" else entry.details:
            Text("p", detail)


class DriftBanner:
    """Shown while there is a recent detection: when, where, and what was done."""

    def __init__(self) -> None:
        with block("section", "drift", role="status", data_testid="drift") as self._place:
            self._title = Text("b")
            self._done = Text("p")
            self._rows = Text("p")
        self._place.set_visibility(False)

    def show(self, agent: WatchedAgent, detection: Entry | None) -> None:
        self._place.set_visibility(detection is not None)
        if detection is None:
            return
        often = agent.status.drift_detections
        times = f"; {often:,} detections in all" if often > 1 else ""
        self._title.set_text(f"Drift was detected at {detection.time}, after episode {detection.episode:,}{times}")
        done, rows = detection.details[:1], detection.details[1:]
        self._done.set_text("".join(done).capitalize())
        self._rows.set_text(f"Rows that contributed most: {'; '.join(rows)}" if rows else "")
