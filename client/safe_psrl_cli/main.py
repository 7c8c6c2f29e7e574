"""The command `safe-psrl`. Each subcommand is a module; its dependencies are imported when it runs."""

import inspect
import sys
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

try:
    import typer
    from typer.core import TyperGroup
    from typer.exceptions import TyperException
except ImportError:
    sys.exit("safe-psrl: the command needs more than the light client: pip install 'safe-psrl[demo]'")

from safe_psrl_cli import (
    agent,
    bench,
    calibrate,
    conformance,
    console,
    demo,
    doctor,
    experiment,
    serve,
    simulate,
    spec,
    store,
    token,
)
from safe_psrl_cli.connection import USER_MISTAKE, leave, with_credentials, with_credentials_everywhere

INTERRUPTED = 130
EXTRAS = {"psycopg": "postgres", "experiment": "experiments", "calibrate": "experiments", "bench": "experiments"}
START = ("demo", "serve", "agent", "simulate", "console", "spec", "doctor")  # listed first in the help, in this order


class InOrderOfUse(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [*START, *(name for name in super().list_commands(ctx) if name not in START)]


app = typer.Typer(
    cls=InOrderOfUse,
    name="safe-psrl",
    help="""Learn online without breaking a constraint: the Safe PSRL service, its agents, experiments and benchmarks.

    Example: safe-psrl demo
    """,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("console")(with_credentials(console.console))
app.command("doctor")(with_credentials(doctor.doctor))
app.command("experiment")(experiment.experiment)
app.command("calibrate")(calibrate.calibrate)
app.command("conformance")(with_credentials(conformance.conformance))
app.add_typer(with_credentials_everywhere(agent.app), name="agent")
app.add_typer(with_credentials_everywhere(simulate.app), name="simulate")
app.add_typer(spec.app, name="spec")
app.add_typer(store.app, name="store")
app.add_typer(token.app, name="token")
app.add_typer(bench.app, name="bench")


def _join_lines(group: typer.Typer) -> None:
    """Typer prints a docstring's paragraphs with their line breaks, which are for wider windows."""
    for command in group.registered_commands:
        paragraphs = inspect.cleandoc(getattr(command.callback, "__doc__", None) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for subgroup in group.registered_groups:
        if subgroup.typer_instance is not None:
            _join_lines(subgroup.typer_instance)


_join_lines(app)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"safe-psrl {version('safe-psrl')}")
        raise typer.Exit


@app.callback()
def _options(
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the subcommand."""


def main() -> NoReturn:
    """Run the command. A user's mistake is one line and exit code 2; Ctrl-C is exit code 130."""
    try:
        code = app(standalone_mode=False)  # usage errors are raised too, instead of printed in a box
    except TyperException as error:
        leave(_usage_mistake(error), USER_MISTAKE)
    except OSError as error:
        leave(f"{error.filename}: {error.strerror}" if error.filename else str(error), USER_MISTAKE)
    except ValueError as error:
        if type(error).__module__ != "safe_psrl.errors":  # by name, as the light client does not have the library
            raise
        leave(str(error), USER_MISTAKE)
    except ModuleNotFoundError as error:
        leave(_missing(error), USER_MISTAKE)
    if code == INTERRUPTED:
        leave("stopped", INTERRUPTED)
    sys.exit(code or 0)


def _missing(error: ModuleNotFoundError) -> str:
    """The extra that installs the missing module. A missing module of ours is a defect and is raised."""
    module = (error.name or "safe_psrl").partition(".")[0]
    if module.startswith("safe_psrl"):
        raise error
    extra = EXTRAS.get(module) or EXTRAS.get(sys.argv[1], "server")
    return f"{sys.argv[1]} needs {module}: pip install 'safe-psrl[{extra}]'"


def _usage_mistake(error: TyperException) -> str:
    """The error and the command whose help explains it; empty if help was shown."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    return f"{message} (see {context.command_path} --help)" if message and context else message


if __name__ == "__main__":
    main()
