"""What an operator can do to an agent: pause, resume, export. Each asks first, and says how it went."""

import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui

from safe_psrl_client import SafePsrlClientError
from safe_psrl_console.controls import Words, block, button
from safe_psrl_console.fleet import WatchedAgent
from safe_psrl_console.live import Live

LONGEST_REASON = 300


class AgentActions:
    """The buttons, and the dialogs behind them."""

    def __init__(self, live: Live, agent: str) -> None:
        self._live, self._agent = live, agent
        with block("div", "actions") as self._place:
            self._pause = button("Pause …", self._ask_pause)
            self._resume = button("Resume …", self._ask_resume)
            self._export = button("Export …", self._ask_export)

    def show(self, agent: WatchedAgent) -> None:
        """Only what can be done now."""
        usable = agent.condition != "quarantined" and self._live.fleet.connected
        self._pause.set_visibility(agent.condition != "paused")
        self._resume.set_visibility(agent.condition == "paused")
        for one in (self._pause, self._resume, self._export):
            if usable and "disabled" in one.props:
                one.props(remove="disabled")
            elif not usable:
                one.props("disabled")

    def _ask_pause(self) -> None:
        explanation = "No new episode begins. If it has a fallback policy, that acts; if not, its environments are refused."
        with _question(f"Pause {self._agent}?", explanation) as dialog:
            reason = ui.input("Reason, for whoever comes after").props(f"autofocus outlined maxlength={LONGEST_REASON}")
            reason.classes("reason")

            async def pause() -> None:
                if not (reason.value or "").strip():
                    reason.props('error error-message="Say why, in a few words."')
                    return
                await self._do(dialog, lambda: self._live.client.pause_agent(self._agent, reason.value.strip()), "is paused")

            reason.on("keydown.enter", pause)
            _answers(dialog, "Pause", pause)

    def _ask_resume(self) -> None:
        with _question(f"Resume {self._agent}?", "Episodes may begin again, and it goes on learning where it was.") as dialog:

            async def resume() -> None:
                await self._do(dialog, lambda: self._live.client.resume_agent(self._agent), "goes on")

            _answers(dialog, "Resume", resume)

    def _ask_export(self) -> None:
        explanation = (
            "The file has all that it learned. `safe-psrl agent import NAME FILE` creates an agent from it, here or elsewhere."
        )
        with _question(f"Export {self._agent}?", explanation) as dialog:

            async def export() -> None:
                await self._do(dialog, self._download, "is exported")

            _answers(dialog, "Export", export)

    async def _download(self) -> None:
        content = await self._live.client.export_agent(self._agent)
        with self._place:
            ui.download.content(content, file_name(self._agent))

    async def _do(self, dialog: ui.dialog, call: Callable[[], Awaitable[Any]], done: str) -> None:
        dialog.close()
        try:
            await call()
        except SafePsrlClientError as error:
            failure = str(error)
        else:
            failure = ""
        with self._place:  # the dialog that asked is no more
            if failure:
                ui.notify(
                    f"That did not work: {failure}", type="negative", timeout=10_000, multi_line=True, close_button="Close"
                )
            else:
                ui.notify(f"{self._agent} {done}.", type="positive")


def file_name(agent: str) -> str:
    """What may stand in a file's name on any system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", agent) + ".agent"


@contextmanager
def _question(title: str, explanation: str) -> Iterator[ui.dialog]:
    """What else belongs into the dialog goes into the block; then it opens, and is thrown away when it closes."""
    with ui.dialog() as dialog, block("div", "ask"):
        dialog.props["aria-label"] = title
        Words("h2", title)
        Words("p", explanation)
        yield dialog
    dialog.on("hide", dialog.delete)
    dialog.open()


def _answers(dialog: ui.dialog, yes: str, act: Callable[[], Awaitable[None]]) -> None:
    with block("div", "answers"):
        button("Cancel", dialog.close, "button")
        button(yes, act, "button is-main")
