"""`safe-psrl token`: the tokens in a service's identities file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from safe_psrl_cli.connection import USER_MISTAKE, AsJson, leave

app = typer.Typer(
    help="""Create, list and revoke the tokens of a service's callers. A running service picks up changes.

    Example: safe-psrl token create --name line-7 --role act --agents 'line-7/*'
    """,
    no_args_is_help=True,
)
File = Annotated[
    Path,
    typer.Option(
        "--identities",
        metavar="FILE",
        envvar="SAFE_PSRL_SECURITY__IDENTITIES",
        dir_okay=False,
        help="The identities file of `safe-psrl serve --identities`.",
    ),
]
DEFAULT_FILE = Path("identities.toml")


class RoleName(StrEnum):
    """As in `safe_psrl_server.security.roles`, which is not imported for a help text."""

    ACT = "act"
    READ = "read"
    ADMIN = "admin"


@app.command("create")
def create(
    name: Annotated[str, typer.Option(metavar="NAME", help="The identity; it may have several tokens.", show_default=False)],
    role: Annotated[
        list[RoleName],
        typer.Option(metavar="ROLE", help="act: play; read: inspect; admin: everything. May be repeated.", show_default=False),
    ],
    agents: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="The agents it may use: 'site/*', '*'. May be repeated.", show_default=False),
    ],
    identities: File = DEFAULT_FILE,
) -> None:
    """Create a token, store its hash in the file, and print it once: the token itself is not stored.

    Example: safe-psrl token create --name ops --role admin --agents '*' > ops.token
    """
    from safe_psrl_server.security.identities import create_token  # noqa: PLC0415
    from safe_psrl_server.security.roles import Role  # noqa: PLC0415

    with _reported(identities):
        typer.echo(create_token(identities, name, [Role(word) for word in role], agents))


@app.command("list")
def list_tokens(identities: File = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """List the identities and what they may do. The tokens themselves are not stored.

    Example: safe-psrl token list --identities identities.toml
    """
    from safe_psrl_server.security.identities import read_identities  # noqa: PLC0415

    with _reported(identities):
        if not identities.exists():
            leave(f"{identities}: no such file; create a token first, or set --identities", USER_MISTAKE)
        entries = read_identities(identities).token
    rows = [entry.model_dump(mode="json", exclude={"sha256"}, exclude_none=True) for entry in entries]
    if as_json:
        typer.echo(json.dumps(rows, indent=2, sort_keys=True))
        return
    from safe_psrl_cli.tables import escape, print_table, table_of  # noqa: PLC0415

    table = table_of("", "name", "id", "created")
    for words in ("roles", "agents"):
        table.add_column(words, overflow="fold")
    for row in rows:
        cells = (row["name"], row["id"], row.get("created", ""), ", ".join(row["roles"]), ", ".join(row["agents"]))
        table.add_row(*(escape(cell) for cell in cells))
    print_table(table)


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME|ID", help="All tokens of a name, or one by its id.", show_default=False)],
    identities: File = DEFAULT_FILE,
) -> None:
    """Revoke tokens. Within a second their calls are rejected and their streams end.

    Example: safe-psrl token revoke line-7
    """
    from safe_psrl_server.security.identities import revoke_tokens  # noqa: PLC0415

    with _reported(identities):
        count = revoke_tokens(identities, name)
    if not count:
        leave(f"{identities} has no token with the name or id {name!r}", USER_MISTAKE)
    typer.echo(f"revoked {count} token{'s' if count > 1 else ''} of {name}")


@contextmanager
def _reported(file: Path) -> Iterator[None]:
    from safe_psrl_server.security.identities import IdentitiesError  # noqa: PLC0415

    try:
        yield
    except IdentitiesError as error:
        leave(f"{file}: {error}", USER_MISTAKE)
