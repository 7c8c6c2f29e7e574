"""`safe-psrl agent compare`, `promote` and `demote`: whether a shadow agent should act, and making it live."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, AsJson, Name, Target, connected, plain, print_json, say
from safe_psrl_console.number_text import estimate_text

if TYPE_CHECKING:
    from safe_psrl_proto.v1 import admin_pb2

Reason = Annotated[str, typer.Option(metavar="TEXT", help="For other operators; kept in the history.")]


def compare(
    name: Name,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Evaluate this policy, too: a JSON table of actions, a list for each step with one action for each state; "
            "one list in a continuing task.",
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Compare a shadow agent with the controller in charge: reward and costs of an episode, or per step, the gain, a verdict.

    The controller's values are means over the reported episodes, with standard errors. The values of the agent's next plan are
    expectations under what was learned, with standard deviations.

    Example: safe-psrl agent compare buffer
    """
    table = _policy_in(policy) if policy is not None else None
    with connected(target) as client:
        reply = client.compare_agent(name, table)
    if as_json:
        print_json(plain(reply))
    else:
        _show(name, reply)


def promote(
    name: Name,
    reason: Reason = "",
    force: Annotated[bool, typer.Option("--force", help="Regardless of the verdict of `agent compare`.")] = False,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Make a shadow agent live from its next episode on, if the verdict of `agent compare` allows it.

    Example: safe-psrl agent promote buffer --reason "two weeks in shadow"
    """
    from safe_psrl_console.budget_status import unit_of  # noqa: PLC0415

    with connected(target) as client:
        reply = client.promote(name, reason, force=force)
    _report(name, reply, as_json, f"is live from its next {unit_of(reply.status)} on")


def demote(name: Name, reason: Reason = "", target: Target = DEFAULT_TARGET, as_json: AsJson = False) -> None:
    """Put a live agent into shadow: its actions are proposals from now on, and another controller must act.

    Example: safe-psrl agent demote buffer --reason "new firmware"
    """
    with connected(target) as client:
        reply = client.demote(name, reason)
    _report(name, reply, as_json, "is in shadow: its actions are proposals")


def _policy_in(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} cannot be read as JSON: {error}", param_hint="--policy") from None


def _report(name: str, reply: "admin_pb2.UpdateAgentResponse", as_json: bool, outcome: str) -> None:
    if as_json:
        print_json(plain(reply))
        return
    say(f"agent {name} {outcome}" + ("" if reply.changes else "; nothing changed"))
    for warning in reply.warnings:
        say(f"warning: {warning}")


def _show(name: str, reply: "admin_pb2.CompareAgentResponse") -> None:
    from safe_psrl_cli.tables import escape, print_table, table_of  # noqa: PLC0415

    has_policy, has_incumbent = reply.HasField("policy"), reply.HasField("incumbent")
    continuing = reply.HasField("shadow_steps")
    seen = f"{reply.shadow_steps:,} steps" if continuing else f"{reply.shadow_episodes:,} episodes"
    incumbent = f"controller in charge,\n{seen}"
    headings = [incumbent, "plan,\nas learned", "\nbudget", *["given policy,\nas learned"] * has_policy]
    table = table_of(f"agent {escape(name)} ({reply.mode})", "\nper step" if continuing else "\nof an episode", *headings)
    parts = [reply.incumbent if has_incumbent else None, reply.plan]
    given = [reply.policy] if has_policy else []
    table.add_row("reward", *[_cell(part and part.reward) for part in parts], "", *[_cell(part.reward) for part in given])
    for i, constraint in enumerate(reply.constraint_names):
        cells = [_cell(part and part.costs[i]) for part in parts]
        budget = f"{reply.cost_budgets[i]:.4g}"
        table.add_row(f"cost of {escape(constraint)}", *cells, budget, *[_cell(part.costs[i]) for part in given])
        if reply.certified_costs:
            table.add_row("  certified", "", f"{reply.certified_costs[i]:.4g}")
    if reply.HasField("gain"):
        table.add_row("gain", "", _cell(reply.gain))
    print_table(table)
    say(reply.verdict_text)


def _cell(value: "admin_pb2.Estimate | None") -> str:
    return "-" if value is None else estimate_text(value.mean, value.error)
