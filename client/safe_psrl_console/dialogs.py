"""Dialogs that ask for a confirmation."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from nicegui import ui

from safe_psrl_console.controls import Text, block, button

LONGEST_REASON: Final = 300


@contextmanager
def question(title: str, explanation: str) -> Iterator[ui.dialog]:
    """A dialog with the block's content; it opens after the block and is deleted when it closes."""
    with ui.dialog() as dialog, block("div", "ask"):
        dialog.props["aria-label"] = title
        Text("h2", title)
        Text("p", explanation)
        yield dialog
    dialog.on("hide", dialog.delete)
    dialog.open()


def answers(*choices: tuple[str, Callable[[], Awaitable[Any] | None]]) -> None:
    """A button for each choice; the last one is the main one."""
    with block("div", "answers"):
        for i, (text, act) in enumerate(choices, 1):
            button(text, act, "button is-main" if i == len(choices) else "button")


class ReasonInput:
    """A required text for other operators."""

    def __init__(self, *, autofocus: bool = False) -> None:
        self.input = ui.input("Reason, for other operators").props(f"outlined maxlength={LONGEST_REASON}").classes("reason")
        if autofocus:
            self.input.props("autofocus")

    def text(self) -> str:
        """Empty if it is missing, which is shown."""
        text = str(self.input.value or "").strip()
        if not text:
            self.input.props('error error-message="Enter a reason."')
        return text
