"""The form that changes an agent's budgets: new values and a reason, what they would do, then the confirmation."""

from collections.abc import Callable
from typing import Final

from nicegui import ui

from safe_psrl_client import AsyncClient, SafePsrlClientError
from safe_psrl_client.visible_text import visible
from safe_psrl_console.budget_status import rate_of
from safe_psrl_console.controls import Text, block
from safe_psrl_console.dialogs import ReasonInput, answers, question
from safe_psrl_proto.v1 import admin_pb2, model_pb2

DRY_RUN_SECONDS: Final = 60.0  # it plans twice
EXPLANATION: Final = "The budgets hold from the next episode on; open episodes keep theirs. What was learned stays."
CERTIFICATES: Final = {
    model_pb2.CERTIFICATE_CONFIDENCE: "confidence",
    model_pb2.CERTIFICATE_CERTAIN: "certain",
    model_pb2.CERTIFICATE_NONE: "none",
}


class BudgetForm:
    """One dialog. The update is refused if the definition has changed since `status`."""

    def __init__(self, client: AsyncClient, status: admin_pb2.AgentStatus, done: Callable[[], None]) -> None:
        self._client, self._status, self._done = client, status, done
        self._changes: dict[str, float] = {}
        self._text = ""

    def open(self) -> None:
        with question(f"Change the budgets of {self._status.agent}?", EXPLANATION) as self._dialog:
            with block("div") as self._form:
                self._inputs = [_budget_input(one, rate_of(self._status)) for one in self._status.constraints]
                self._reason = ReasonInput()
                answers(("Cancel", self._dialog.close), ("Preview", self._preview))
            self._shown = block("div")
            self._problem = Text("p", "", "problem").props("role=alert")

    async def _preview(self) -> None:
        """Check the form, request a dry run, and show its result in place of the form."""
        self._text = self._reason.text()
        budgets = [field.value for field in self._inputs]
        if not self._text or None in budgets:
            self._problem.set_text("Enter a number for each budget." if None in budgets else "")
            return
        self._changes = {
            f"constraints.{one.name}.cost_budget": budget
            for one, budget in zip(self._status.constraints, budgets, strict=True)
            if budget != one.cost_budget
        }
        if not self._changes:
            self._problem.set_text("These are the present budgets: change one of them.")
            return
        self._problem.set_text("Planning …")
        reply = await self._update(dry_run=True)
        if reply is not None:
            self._problem.set_text("")
            self._form.set_visibility(False)
            with self._shown:
                _show_changes(reply)
                answers(("Back", self._back), ("Change budgets", self._confirm))

    def _back(self) -> None:
        self._problem.set_text("")
        self._shown.clear()
        self._form.set_visibility(True)

    async def _confirm(self) -> None:
        if await self._update(dry_run=False) is not None:
            self._dialog.close()
            self._done()

    async def _update(self, *, dry_run: bool) -> admin_pb2.UpdateAgentResponse | None:
        """None if it failed, which is shown."""
        try:
            return await self._client.update_agent(
                self._status.agent,
                self._changes,
                reason=self._text,
                expected_version=self._status.definition_version,
                dry_run=dry_run,
                timeout=DRY_RUN_SECONDS if dry_run else None,
            )
        except SafePsrlClientError as error:
            self._problem.set_text(visible(str(error)))
            return None


def _budget_input(constraint: admin_pb2.ConstraintStatus, rate: str) -> ui.number:
    field = ui.number(f"Budget of {constraint.name}", value=constraint.cost_budget, min=0).props("outlined step=any")
    field.props["hint"] = f"Per {rate}; now {constraint.cost_budget:g}, and {constraint.satisfiable_cost:g} is satisfiable."
    return field.classes("reason")


def _show_changes(reply: admin_pb2.UpdateAgentResponse) -> None:
    """What is different, the plan for the next episode before and after, and warnings."""
    previews = (reply.before, reply.after)
    for change in reply.changes:
        Text("p", visible(change), "change")
    with block("table", "previews", data_testid="preview"):
        _row("th", "The next plan, as expected from what was learned", "before", "after")
        _row("td", "reward", *[f"{one.reward:,.4g}" for one in previews])
        for i, constraint in enumerate(reply.status.constraints):
            _row("td", f"cost of {visible(constraint.name)}", *[f"{one.costs[i]:,.4g}" for one in previews])
            if reply.after.certified_costs:
                _row("td", "at most, certified", *[f"{one.certified_costs[i]:,.4g}" for one in previews])
        if reply.after.certificate:
            _row("td", "certificate", *[CERTIFICATES.get(one.certificate, "-") for one in previews])
    for warning in reply.warnings:
        Text("p", f"Warning: {visible(warning)}", "problem")


def _row(tag: str, *cells: str) -> None:
    with block("tr"):
        for cell in cells:
            Text(tag, cell)
