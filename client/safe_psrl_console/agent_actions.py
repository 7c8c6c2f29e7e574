"""The operator's actions on an agent: each needs a confirmation and reports its result."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from nicegui import ui

from safe_psrl_client import SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_console.budget_form import BudgetForm
from safe_psrl_console.connection import Connection
from safe_psrl_console.controls import block, button
from safe_psrl_console.dialogs import ReasonInput, answers, question
from safe_psrl_console.fleet import WatchedAgent


class AgentActions:
    """The buttons, and the dialogs behind them."""

    def __init__(self, connection: Connection, agent: WatchedAgent) -> None:
        self._connection, self._watched, self._agent = connection, agent, agent.name
        with block("div", "actions") as self._place:
            self._budgets = button("Change budgets …", self._ask_budgets)
            self._pause = button("Pause …", self._ask_pause)
            self._resume = button("Resume …", self._ask_resume)
            self._export = button("Export …", self._ask_export)
            self._promote = button("Promote …", self._ask_promote)
            self._demote = button("Put into shadow …", self._ask_demote)

    def show(self, agent: WatchedAgent) -> None:
        """Enable only the actions that are possible now."""
        self._watched = agent
        usable = agent.condition != "quarantined" and self._connection.fleet.connected
        self._pause.set_visibility(agent.condition != "paused")
        self._resume.set_visibility(agent.condition == "paused")
        self._promote.set_visibility(agent.status.mode == "shadow")
        self._demote.set_visibility(agent.status.mode != "shadow")
        for one in (self._budgets, self._pause, self._resume, self._export, self._promote, self._demote):
            if usable and "disabled" in one.props:
                one.props(remove="disabled")
            elif not usable:
                one.props("disabled")

    def _ask_budgets(self) -> None:
        BudgetForm(self._connection.client, self._watched.status, lambda: self._report("has new budgets")).open()

    def _ask_pause(self) -> None:
        explanation = "No new episode starts. The fallback policy acts; without one, the environment's calls fail."
        self._ask_why("Pause", explanation, self._connection.client.pause_agent, "is paused")

    def _ask_promote(self) -> None:
        explanation = (
            "From its next episode on the agent acts. The service refuses if its plan is not certified, or if its gain is not "
            "certain enough; `safe-psrl agent promote --force` overrides that."
        )
        self._ask_why("Promote", explanation, self._connection.client.promote, "is live")

    def _ask_demote(self) -> None:
        explanation = "From now on its actions are proposals, and another controller must act. The agent continues to learn."
        self._ask_why("Demote", explanation, self._connection.client.demote, "is in shadow")

    def _ask_why(self, action: str, explanation: str, call: Callable[[str, str], Awaitable[Any]], done: str) -> None:
        with question(f"{action} {self._agent}?", explanation) as dialog:
            reason = ReasonInput(autofocus=True)

            async def act() -> None:
                text = reason.text()
                if text:
                    await self._do(dialog, lambda: call(self._agent, text), done)

            reason.input.on("keydown.enter", act)
            answers(("Cancel", dialog.close), (action, act))

    def _ask_resume(self) -> None:
        explanation = "New episodes can start, and the agent continues to learn."
        self._ask_why("Resume", explanation, self._connection.client.resume_agent, "is resumed")

    def _ask_export(self) -> None:
        explanation = (
            "The file contains everything that the agent has learned. "
            "`safe-psrl agent import NAME FILE` creates an agent from it, on any service."
        )
        with question(f"Export {self._agent}?", explanation) as dialog:
            answers(("Cancel", dialog.close), ("Export", lambda: self._do(dialog, self._download, "is exported")))

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
            self._report(done)

    def _report(self, done: str) -> None:
        with self._place:
            ui.notify(f"{self._agent} {done}.", type="positive")


def file_name(agent: str) -> str:
    """A file name that is valid on any system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", agent) + ".agent"
