"""`safe-psrl agent`: create, inspect, pause, move and verify the agents of a service."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safe_psrl_cli.agent_explain import explain
from safe_psrl_cli.agent_export import export
from safe_psrl_cli.agent_listing import Condition, Sort, query_of
from safe_psrl_cli.agent_promotion import compare, demote, promote
from safe_psrl_cli.agent_updates import history, update
from safe_psrl_cli.connection import (
    DEFAULT_TARGET,
    PRESETS,
    USER_MISTAKE,
    AsJson,
    Name,
    Target,
    complete_preset,
    connected,
    leave,
    options_of,
    plain,
    print_json,
    reported_errors,
    say,
)

if TYPE_CHECKING:
    from safe_psrl_proto.v1 import model_pb2

NOT_AS_STORED = 1
MAX_SEED = 2**63 - 1

app = typer.Typer(
    help="""Create, inspect, pause, move and verify the agents of a running service.

    Example: safe-psrl agent create buffer --preset streaming-buffer
    """,
    no_args_is_help=True,
)


@app.command("create")
def create(
    name: Name,
    preset: Annotated[
        str,
        typer.Option(metavar="NAME", autocompletion=complete_preset, help=f"{', '.join(PRESETS)}."),
    ] = "",
    spec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A .toml or .json file as printed by `safe-psrl spec show`; may have a table `agent`.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed of the agent's randomness; 0 if not given.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="An option, such as confidence=0.95 or method=published; may be repeated."
        ),
    ] = None,
    from_log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Begin with logged transitions: .csv, .jsonl or .parquet."),
    ] = None,
    columns: Annotated[
        str, typer.Option(metavar="NAMES", help="Columns of the log that have other names: state=s,action=a.")
    ] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that contradict the specification.")] = False,
    from_agent: Annotated[str, typer.Option(metavar="NAME", help="Begin with what another agent has learned.")] = "",
    from_fleet: Annotated[str, typer.Option(metavar="PATTERN", help="Begin with the mean of agents, such as 'cell/*'.")] = "",
    weight: Annotated[float, typer.Option(metavar="W", help="Weight of each of these transitions; new ones have 1.")] = 1.0,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, help="Wait this long for a service that is starting.")] = 0.0,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Create an agent. Repeating it with the same definition has no effect.

    Example: safe-psrl agent create shop --preset inventory --seed 7 --set confidence=0.95
    """
    from safe_psrl_cli.warm_start import Origin, preset_definition, warm_start  # noqa: PLC0415
    from safe_psrl_client import options_from_document  # noqa: PLC0415

    origin = Origin(from_log, columns, skip_bad, from_agent, from_fleet, weight)
    if bool(preset) == (spec is not None):
        raise typer.BadParameter("give either --preset or --spec", param_hint="--preset")
    if seed is not None and seed > MAX_SEED:
        raise typer.BadParameter(f"must be at most {MAX_SEED}", param_hint="--seed")
    with connected(target, wait) as client:
        options = options_from_document(options_of(settings or []))
        definition = preset if spec is None else definition_in(spec, options, seed)
        if origin.is_given:
            definition = preset_definition(preset, options, seed or 0) if isinstance(definition, str) else definition
            definition.warm_start.CopyFrom(warm_start(client, definition, origin))
        in_full = not isinstance(definition, str)
        apart: dict[str, Any] = {} if in_full else {"options": options, "seed": seed or 0}  # a specification contains them
        reply = client.create_agent(name, definition, **apart)
        existed = " already exists, with the same definition" if reply.existed else " created"
        warnings = "".join(f"\nwarning: {text}" for text in reply.warnings)
        _print(plain(reply), as_json, f"agent {name}{existed}{warnings}")


@app.command("list")
def list_agents(
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only agents whose names begin with it.")] = "",
    condition: Annotated[
        Condition | None,
        typer.Option(metavar="CONDITION", help="Only agents in this condition: active, paused or quarantined."),
    ] = None,
    min_ratio: Annotated[
        float | None,
        typer.Option("--min-ratio", metavar="R", min=0, help="Only agents whose recent cost is at least R times a budget."),
    ] = None,
    sort: Annotated[
        Sort,
        typer.Option(
            metavar="ORDER",
            help="name, condition, ratio, changed, created, events or size; descending, except for name and condition.",
        ),
    ] = Sort.NAME,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Maximum number of agents; 0 for all.")] = 0,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """List the agents with method, costs and a verdict: whether the mean cost is within the budget, after 20 episodes.

    A paused or quarantined agent, or one in shadow, has that word below its verdict.

    Example: safe-psrl agent list --min-ratio 0.9 --sort ratio --limit 20
    """
    from safe_psrl_cli.agent_tables import show_agents, verdict_of  # noqa: PLC0415

    query = query_of(prefix, condition, min_ratio, sort, limit)
    with connected(target) as client:
        statuses = list(islice(client.list_agents(**query), limit or None))
    if as_json:
        print_json([plain(status) | verdict_of(status) for status in statuses])
    else:
        show_agents(statuses, is_filtered=bool(prefix or condition or min_ratio is not None))


@app.command("show")
def show(
    name: Name,
    with_spec: Annotated[bool, typer.Option("--spec", help="Include its definition.")] = False,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Show one agent: whether it holds its budgets, and how it learns. With --json, equal durable states print equal bytes.

    Example: safe-psrl agent show buffer --json
    """
    from safe_psrl_cli.agent_tables import show_agent, verdict_of  # noqa: PLC0415
    from safe_psrl_client import spec_to_document  # noqa: PLC0415

    with connected(target) as client:
        reply = client.get_agent(name, with_spec=True)
    definition = {"spec": spec_to_document(reply.spec)} if with_spec else {}
    if as_json:
        print_json(plain(reply.status) | verdict_of(reply.status) | definition)
        return
    show_agent(reply.status, reply.spec)
    if with_spec:
        print_json(definition["spec"])


@app.command("pause")
def pause(
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Shown to other operators.")] = "",
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Pause an agent: no new episodes; its fallback policy acts, if it has one.

    Example: safe-psrl agent pause buffer --reason "maintenance until noon"
    """
    with connected(target) as client:
        _print(plain(client.pause_agent(name, reason)), as_json, f"agent {name} paused")


@app.command("resume")
def resume(
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="For other operators; kept in the history.")] = "",
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Resume a paused agent.

    Example: safe-psrl agent resume buffer --reason "maintenance is over"
    """
    with connected(target) as client:
        _print(plain(client.resume_agent(name, reason)), as_json, f"agent {name} resumed")


app.command("update")(update)
app.command("history")(history)
app.command("explain")(explain)
app.command("compare")(compare)
app.command("promote")(promote)
app.command("demote")(demote)
app.command("export")(export)


@app.command("delete")
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Delete an agent and all that it learned.

    Example: safe-psrl agent delete buffer --yes
    """
    if not yes and not typer.confirm(f"Delete agent {name} at {target} and all that it learned?", err=True):
        leave(f"agent {name} was not deleted", USER_MISTAKE)
    with connected(target) as client:
        client.delete_agent(name)
    _print({"agent": name, "deleted": True}, as_json, f"agent {name} deleted")


@app.command("import")
def import_agent(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, dir_okay=False, help="Written by `export`.")],
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Create an agent from an exported one, under the same or another name.

    Example: safe-psrl agent import buffer buffer.agent --target other:50551
    """
    content = file.read_bytes()
    with connected(target) as client:
        _print(plain(client.import_agent(name, content)), as_json, f"agent {name} imported")


@app.command("verify")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", show_default=False, help="All agents if none is given.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All agents; the default.")] = False,
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Rebuild agents from their stored events and compare with the served state. Exit code 1 if one differs.

    Example: safe-psrl agent verify buffer
    """
    from safe_psrl_client import DataLossError  # noqa: PLC0415

    if every and names:
        raise typer.BadParameter("give names or --all, not both", param_hint="--all")
    findings: list[dict[str, Any]] = []
    with connected(target) as client:
        for name in names or [status.agent for status in client.list_agents()]:
            try:
                findings.append({"agent": name, **plain(client.verify_agent(name))})
            except DataLossError as error:
                findings.append({"agent": name, "ok": False, "difference": str(error), "events": 0, "state_digest": ""})
    if as_json:
        print_json(findings)
    for finding in [] if as_json else findings:
        result = "as stored" if finding["ok"] else f"DIFFERS: {finding['difference']}"
        say(f"{finding['agent']}: {result} ({finding['events']:,} events read, digest {finding['state_digest'][:16]})")
    if not all(finding["ok"] for finding in findings):
        raise typer.Exit(NOT_AS_STORED)


def definition_in(path: Path, options: "model_pb2.SafePsrlOptions", seed: int | None) -> "model_pb2.AgentSpec":
    """The file's definition, overridden by the command line."""
    from safe_psrl_client.documents import parse_document, spec_from_document  # noqa: PLC0415

    if path.suffix not in {".toml", ".json"}:
        raise typer.BadParameter(f"{path} must be a .toml or .json file", param_hint="--spec")
    with reported_errors(str(path)):
        definition = spec_from_document(parse_document(path.read_text(encoding="utf-8"), path.suffix[1:]))
    definition.options.MergeFrom(options)
    if seed is not None:
        definition.seed = seed
    return definition


def _print(document: dict[str, Any], as_json: bool, line: str) -> None:
    if as_json:
        print_json(document)
    else:
        say(line)
