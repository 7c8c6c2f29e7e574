"""The one command, `safe-psrl`. A subcommand is a file here; what it needs is imported when it runs."""

import sys
from typing import Annotated, NoReturn

try:
    import typer
except ImportError:
    sys.exit("safe-psrl: the command needs more than the light client: pip install 'safe-psrl[server]'")

from safe_psrl_cli import bench, experiment, spec

USER_MISTAKE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="safe-psrl",
    help="Learn online without breaking a constraint: Safe PSRL, its experiments and its benchmarks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("experiment")(experiment.experiment)
app.add_typer(bench.app, name="bench")
app.add_typer(spec.app, name="spec")


def _version(asked: bool) -> None:
    if asked:
        from safe_psrl.version import __version__  # noqa: PLC0415

        typer.echo(f"safe-psrl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Options that stand before a subcommand."""


def main() -> NoReturn:
    """Run the command. A user's mistake is one line and exit code 2; Ctrl-C is exit code 130."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("safe-psrl: stopped", err=True)
        sys.exit(INTERRUPTED)
    except (ValueError, OSError) as error:
        if not _is_for_users(error):
            raise
        typer.echo(f"safe-psrl: {error}", err=True)
        sys.exit(USER_MISTAKE)
    sys.exit(0)


def _is_for_users(error: Exception) -> bool:
    from safe_psrl.errors import SafePsrlError  # noqa: PLC0415  # a command that got here has loaded it

    return isinstance(error, SafePsrlError | OSError)


if __name__ == "__main__":
    main()
