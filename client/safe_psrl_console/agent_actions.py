"""The operator's actions on an agent: pause, resume, export. Each needs a confirmation and reports its result."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from safe_psrl_client import SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_console.connection import Connection
from safe_psrl_console.controls import Text, block, button
from safe_psrl_console.fleet import WatchedAgent

LONGEST_REASON = 300


class AgentActions:
    """The buttons, and the dialogs behind them."""

    def __init__(self, connection: Connection, agent: str) -> None:
        self._connection, self._agent = connection, agent
        with block("div", "actions") as self._place:
            self._pause = button("Pause …", self._ask_pause)
            self._resume = button("Resume …", self._ask_resume)
            self._export = button("Export …", self._ask_export)

    def show(self, agent: WatchedAgent) -> None:
        """Enable only the actions that are possible now."""
        usable = agent.condition != "quarantined" and self._connection.fleet.connected
        self._pause.set_visibility(agent.condition != "paused")
        self._resume.set_visibility(agent.condition == "paused")
        for one in (self._pause, self._resume, self._export):
            if usable and "disabled" in one.props:
                one.props(remove="disabled")
            elif not usable:
                one.props("disabled")

    def _ask_pause(self) -> None:
        explanation = "No new episode starts. The fallback policy acts; without one, the environment's calls fail."
        with _question(f"Pause {self._agent}?", explanation) as dialog:
            reason = ui.input("Reason, for other operators").props(f"autofocus outlined maxlength={LONGEST_REASON}")
            reason.classes("reason")

            async def pause() -> None:
                if not (reason.value or "").strip():
                    reason.props('error error-message="Enter a reason."')
                    return
                await self._do(
                    dialog, lambda: self._connection.client.pause_agent(self._agent, reason.value.strip()), "is paused"
                )

            reason.on("keydown.enter", pause)
            _answers(dialog, "Pause", pause)

    def _ask_resume(self) -> None:
        explanation = "New episodes can start, and the agent continues to learn."
        self._ask("Resume", explanation, lambda: self._connection.client.resume_agent(self._agent), "is resumed")

    def _ask_export(self) -> None:
        explanation = (
            "The file contains everything that the agent has learned. "
            "`safe-psrl agent import NAME FILE` creates an agent from it, on any service."
        )
        self._ask("Export", explanation, self._download, "is exported")

    def _ask(self, action: str, explanation: str, call: Callable[[], Awaitable[Any]], done: str) -> None:
        with _question(f"{action} {self._agent}?", explanation) as dialog:
            _answers(dialog, action, lambda: self._do(dialog, call, done))

    async def _download(self) -> None:
        content = await self._connection.client.export_agent(self._agent)
        with self._place:
            ui.download.content(content, file_name(self._agent))

    async def _do(self, dialog: ui.dialog, call: Callable[[], Awaitable[Any]], done: str) -> None:
        dialog.close()
        try:
            await call()
        except SafePsrlClientError as error:
            with self._place:  # the dialog is deleted
                ui.notify(
                    f"Failed: {visible(str(error))}", type="negative", timeout=10_000, multi_line=True, close_button="Close"
                )
        else:
            with self._place:
                ui.notify(f"{self._agent} {done}.", type="positive")


def file_name(agent: str) -> str:
    """A file name that is valid on any system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", agent) + ".agent"


@contextmanager
def _question(title: str, explanation: str) -> Iterator[ui.dialog]:
    """A dialog with the block's content; it opens after the block and is deleted when it closes."""
    with ui.dialog() as dialog, block("div", "ask"):
        dialog.props["aria-label"] = title
        Text("h2", title)
        Text("p", explanation)
        yield dialog
    dialog.on("hide", dialog.delete)
    dialog.open()


def _answers(dialog: ui.dialog, yes: str, act: Callable[[], Awaitable[None]]) -> None:
    with block("div", "answers"):
        button("Cancel", dialog.close, "button")
        button(yes, act, "button is-main")
