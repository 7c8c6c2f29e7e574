"""`safe-psrl spec`: show and check specifications."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safe_psrl_cli.connection import USER_MISTAKE, complete_preset, leave, reported_errors, say

if TYPE_CHECKING:
    from safe_psrl_proto.v1 import model_pb2
    from safe_psrl_testbed import Scenario

app = typer.Typer(
    help="""Show and check problem specifications.

    Example: safe-psrl spec show streaming-buffer > mine.toml
    """,
    no_args_is_help=True,
)
Environment = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        show_default=False,
        autocompletion=complete_preset,
        help="streaming-buffer, inventory, factored-toy, continuing-buffer, random:…, or a .toml or .json file.",
    ),
]


@app.command("show")
def show(
    environment: Environment,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of TOML.")] = False,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Include the true kernel, so that the file can be simulated.")
    ] = False,
) -> None:
    """Print a specification as a document that can be edited and used as input.

    Example: safe-psrl spec show streaming-buffer --transitions > mine.toml
    """
    from safe_psrl.problem.documents import spec_to_document, write_document  # noqa: PLC0415
    from safe_psrl_testbed import scenario_named  # noqa: PLC0415

    scenario = scenario_named(environment)
    document = spec_to_document(scenario.spec)
    if transitions:
        kernel = scenario.transitions_for(1)
        constraints = document.pop("constraints")  # tables come last in TOML
        document |= {"transitions": (kernel if len(kernel) > 1 else kernel[0]).tolist(), "constraints": constraints}
    typer.echo(write_document(document, "json" if as_json else "toml"), nl=False)


@app.command("check")
def check(
    environment: Environment,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option, as in `agent create`; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check a specification as creating its agent does, and report what to expect.

    It reports plan time and memory, the pessimism of the paper's methods, assumptions, warnings, and the exact optimum if the
    kernel is known.

    Examples:

    safe-psrl spec check mine.toml

    safe-psrl spec check streaming-buffer --set method=theorem
    """
    from safe_psrl_cli.preflight import findings_of  # noqa: PLC0415
    from safe_psrl_server.errors import InvalidArgumentError  # noqa: PLC0415
    from safe_psrl_testbed import scenario_named  # noqa: PLC0415

    scenario = scenario_named(environment)
    with reported_errors(environment):
        message = _message(scenario, environment, settings or [])
    try:
        findings = findings_of(scenario, message)
    except InvalidArgumentError as error:
        leave(str(error), USER_MISTAKE)
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
    else:
        for line in _lines(findings):
            say(line)


def _message(scenario: "Scenario", environment: str, settings: list[str]) -> "model_pb2.AgentSpec":
    """What `agent create` would send."""
    from safe_psrl_cli.agent import definition_in  # noqa: PLC0415
    from safe_psrl_cli.connection import options_of  # noqa: PLC0415
    from safe_psrl_client import options_from_document  # noqa: PLC0415
    from safe_psrl_proto.v1 import model_pb2  # noqa: PLC0415
    from safe_psrl_server.agents.messages import cmdp_to_message  # noqa: PLC0415

    options = options_from_document(options_of(settings))
    path = Path(environment)
    if path.suffix in {".toml", ".json"}:
        return definition_in(path, options, None)
    return model_pb2.AgentSpec(cmdp=cmdp_to_message(scenario.spec), options=options)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield "{name}: {num_states} states, {num_actions} actions, horizon {horizon}: valid".format(**found)
    fallback = "with" if found["has_fallback"] else "without"
    yield f"  method {found['method']}, seed {found['seed']}, {fallback} a fallback policy"
    for constraint in found["constraints"]:
        yield "  {name}: cost budget {cost_budget:g}, satisfiable cost {satisfiable_cost:g}".format(**constraint)
        if "first_pessimism" in constraint:
            first, episode = constraint["first_pessimism"], constraint["episode_below_budget"]
            yield f"    pessimism {first:.4g} in the first episode; below the budget from episode {episode:,} on"
            yield (
                "    by the theorem, feasible with its pessimism from episode {feasibility_episode:,.0f} on (C''), "
                "expected dual variable then below {dual_variable_bound:.3g}".format(**constraint)
            )
    kilobytes, shared = found["agent_bytes"] / 1000, found["shared_bytes"] / 1000
    yield f"  a plan takes {1000 * found['plan_seconds']:.3g} ms here"
    yield f"  an agent needs {kilobytes:,.1f} kB, and {shared:,.1f} kB shared with agents of the same problem"
    yield from (f"  assumed: {assumption}" for assumption in found["assumptions"])
    optimum = found["optimum"]
    if optimum is None:
        yield "  no kernel: an experiment draws one from the prior for each seed"
    else:
        costs = ", ".join(f"{cost:.6f}" for cost in optimum["costs"])
        yield f"  exact optimum: reward {optimum['reward']:.6f} at cost {costs}"
    yield from (f"  warning: {warning}" for warning in found["warnings"])
