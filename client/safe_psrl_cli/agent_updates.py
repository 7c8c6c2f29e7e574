"""`safe-psrl agent update` and `history`: changing an agent while it runs, and who changed it."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, AsJson, Name, Target, connected, options_of, plain, print_json, say

if TYPE_CHECKING:
    from safe_psrl_proto.v1 import admin_pb2, events_pb2


def update(
    name: Name,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            show_default=False,
            help="A new value, such as constraints.delay.cost_budget=4, options.confidence=0.95 or drift.on_detect=forget; "
            "null for the default. May be repeated.",
        ),
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="For other operators; kept in the history.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show the next plan before and after.")] = False,
    expected_version: Annotated[
        int, typer.Option(metavar="N", min=0, help="Fail if the definition has another version; 0 for any.")
    ] = 0,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Change an agent from its next episode on: budgets, satisfiable costs, known tables, options, drift, fallback, limits.

    An open episode is played to its end. What was learned stays.

    Example: safe-psrl agent update buffer --set constraints.fast-service.cost_budget=4 --reason "night tariff" --dry-run
    """
    from safe_psrl_console.budget_status import unit_of  # noqa: PLC0415

    with connected(target) as client:
        reply = client.update_agent(
            name, options_of(settings), reason=reason, expected_version=expected_version, dry_run=dry_run
        )
    if as_json:
        print_json(plain(reply))
        return
    if not reply.changes:
        say(f"agent {name}: nothing to change")
        return
    say(f"agent {name} {'would be updated' if dry_run else f'updated, from its next {unit_of(reply.status)} on'}:")
    for change in reply.changes:
        say(f"  {change}")
    for warning in reply.warnings:
        say(f"warning: {warning}")
    if dry_run:
        _show_previews(reply)


def history(name: Name, target: Target = DEFAULT_TARGET, as_json: AsJson = False) -> None:
    """Show who did what to an agent, when and why; and when drift was detected. The latest comes first.

    Example: safe-psrl agent history buffer
    """
    from safe_psrl_console.budget_status import unit_of  # noqa: PLC0415

    with connected(target) as client:
        entries = list(client.list_events(name))
        unit = unit_of(client.get_agent(name).status)
    if as_json:
        print_json([plain(entry) for entry in entries])
        return
    for entry in entries:
        say(_line(entry, unit))
        for detail in entry.details:
            say(f"    {detail}")


def _line(entry: "events_pb2.LogEntry", unit: str) -> str:
    time = datetime.fromtimestamp(entry.time_micros / 1e6, UTC)
    kind = str(plain(entry)["kind"]).replace("_", " ").replace("guarded", "paused by its guard")
    by, reason = f" by {entry.by}" if entry.by else "", f": {entry.reason}" if entry.reason else ""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC  {kind}{by}, after {entry.episode:,} {unit}s{reason}"


def _show_previews(reply: "admin_pb2.UpdateAgentResponse") -> None:
    from safe_psrl_cli.tables import escape, print_table, table_of  # noqa: PLC0415

    previews = (reply.before, reply.after)
    table = table_of("the next plan, as expected from what was learned", "", "before", "after")
    table.add_row("reward", *[f"{one.reward:.6g}" for one in previews])
    for i, constraint in enumerate(reply.status.constraints):
        table.add_row(f"cost of {escape(constraint.name)}", *[f"{one.costs[i]:.6g}" for one in previews])
        table.add_row("  certified", *[f"{one.certified_costs[i]:.6g}" if one.certified_costs else "-" for one in previews])
    print_table(table)
