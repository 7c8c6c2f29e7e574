"""Shared by the commands that call a service: the option `--target`, and errors as one line with an exit code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from safe_psrl_cli.credentials import client_credentials

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from safe_psrl_client import Client, SafePsrlClientError

DEFAULT_TARGET = "127.0.0.1:50551"
USER_MISTAKE = 2
SERVICE_FAILED = 3
TIMEOUT = 5.0  # seconds: a person is waiting

Target = Annotated[
    str, typer.Option(metavar="ADDR", envvar="SAFE_PSRL_TARGET", help="Where the service listens: host:port or unix:PATH.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def connected(target: str, wait: float = 0.0) -> Iterator["Client"]:
    """A client of the service at `target`, which is waited for that many seconds; its errors end the command."""
    from safe_psrl_client import Client  # noqa: PLC0415

    with reported_errors(target), Client(target, timeout=TIMEOUT, patience=wait, **client_credentials()) as client:
        yield client


@contextmanager
def reported_errors(target: str) -> Iterator[None]:
    """Errors of the client become one line: exit code 2 for a user's mistake, 3 if the service failed or is not there."""
    from safe_psrl_client import SafePsrlClientError  # noqa: PLC0415

    try:
        yield
    except SafePsrlClientError as error:
        leave(*_told(error, target))


def leave(message: str, code: int) -> NoReturn:
    typer.echo("safe-psrl: " + " ".join(message.split()), err=True)
    raise typer.Exit(code)


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, sort_keys=True))


def plain(message: "Message") -> dict[str, Any]:
    """Every field of `message` by name: numbers as numbers, enumerations as words."""
    return {field.name: _plain_value(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain_value(field: Any, value: Any, *, is_entry: bool = False) -> Any:
    if field.is_repeated and not is_entry:
        return [_plain_value(field, entry, is_entry=True) for entry in value]
    if field.type == field.TYPE_MESSAGE:
        return plain(value)
    if field.type == field.TYPE_ENUM:
        return field.enum_type.values_by_number[value].name.rpartition("_")[2].lower()
    return value


def _told(error: "SafePsrlClientError", target: str) -> tuple[str, int]:
    from safe_psrl_client import errors  # noqa: PLC0415

    if isinstance(error, errors.UnauthenticatedError):
        return f"{error} (--token-file, SAFE_PSRL_TOKEN, or --tls-cert and --tls-key)", USER_MISTAKE
    if isinstance(error, errors.UnavailableError | errors.DeadlineExceededError):
        return f"no answer from {target}: is the service running there? (safe-psrl serve) ({error})", SERVICE_FAILED
    mistakes = (errors.PermissionDeniedError, errors.NotFoundError, errors.AlreadyExistsError, errors.FailedPreconditionError)
    return str(error), USER_MISTAKE if isinstance(error, (ValueError, *mistakes)) else SERVICE_FAILED
