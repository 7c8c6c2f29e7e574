"""Commands that call a service: `--target`, the options of credentials, and errors as one line with an exit code.

SAFE_PSRL_TOKEN may hold a token. There is no option for it, as other users of a machine can read command lines.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypedDict

import typer

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

    from safe_psrl_client import Client


DEFAULT_TARGET = "127.0.0.1:50551"
USER_MISTAKE = 2
SERVICE_FAILED = 3
TIMEOUT = 5.0  # seconds: a person is waiting

Target = Annotated[
    str, typer.Option(metavar="ADDR", envvar="SAFE_PSRL_TARGET", help="Where the service listens: host:port or unix:PATH.")
]
Patience = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        min=0,
        show_default=False,
        help="Seconds to retry while the service is unavailable; 30 if not given, but 1.5 for the first connection.",
    ),
]
PRESETS = ("streaming-buffer", "inventory", "factored-toy", "continuing-buffer")


def complete_preset(incomplete: str) -> list[str]:
    """For the shell."""
    return [name for name in PRESETS if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The agent's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@contextmanager
def connected(target: str, wait: float | None = 0.0) -> Iterator["Client"]:
    """A client of the service at `target`, which waits up to `wait` seconds for it; its errors end the command.

    None waits as `Client` does by default.
    """
    from safe_psrl_client import Client  # noqa: PLC0415

    with reported_errors(target), Client(target, timeout=TIMEOUT, patience=wait, **client_credentials()) as client:
        yield client


@contextmanager
def reported_errors(target: str) -> Iterator[None]:
    """Errors of the client become one line: exit code 2 for a user's mistake, 3 if the service failed or is not there."""
    from safe_psrl_client import errors  # noqa: PLC0415
    from safe_psrl_client.sync.retry import NO_SERVICE  # noqa: PLC0415

    try:
        yield
    except errors.UnauthenticatedError as error:
        leave(f"{error} (--token-file, SAFE_PSRL_TOKEN, or --tls-cert and --tls-key)", USER_MISTAKE)
    except (errors.UnavailableError, errors.DeadlineExceededError) as error:
        reached = error.reason != NO_SERVICE
        leave(f"no answer from {target}: is the service running there? ({error})" if reached else str(error), SERVICE_FAILED)
    except errors.SafePsrlClientError as error:
        mistakes = (errors.PermissionDeniedError, errors.NotFoundError, errors.AlreadyExistsError)
        is_mistake = isinstance(error, (ValueError, errors.FailedPreconditionError, *mistakes))
        leave(str(error), USER_MISTAKE if is_mistake else SERVICE_FAILED)


def leave(message: str, code: int) -> NoReturn:
    """End the process with `message` as one line, if there is one."""
    if message:
        say("safe-psrl: " + " ".join(message.split()), err=True)
    sys.exit(code)


def say(line: str, *, err: bool = False) -> None:
    """Print one line. A service's text in it cannot control the terminal."""
    from safe_psrl_client.visible_text import visible  # noqa: PLC0415

    typer.echo(visible(line), err=err)


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
        names = field.enum_type.values_by_number
        return names[value].name.removeprefix(names[0].name.removesuffix("UNSPECIFIED")).lower()
    return value


PANEL = "Credentials"
TOKEN_VARIABLE = "SAFE_PSRL_TOKEN"  # noqa: S105  # a name


def _file(option: str, variable: str, help_text: str) -> Any:
    return typer.Option(option, metavar="FILE", envvar=variable, help=help_text, rich_help_panel=PANEL, show_default=False)


class Given(NamedTuple):
    """The options of credentials; their values come from the command line or the environment."""

    tls: Annotated[
        bool,
        typer.Option(
            "--tls", envvar="SAFE_PSRL_TLS", help="Use TLS; implied by --tls-ca and --tls-cert.", rich_help_panel=PANEL
        ),
    ] = False
    tls_ca: Annotated[
        Path | None, _file("--tls-ca", "SAFE_PSRL_TLS_CA", "Authority to trust instead of the usual ones, PEM.")
    ] = None
    tls_cert: Annotated[Path | None, _file("--tls-cert", "SAFE_PSRL_TLS_CERT", "This client's certificate, PEM.")] = None
    tls_key: Annotated[Path | None, _file("--tls-key", "SAFE_PSRL_TLS_KEY", "Its private key, PEM.")] = None
    token_file: Annotated[
        Path | None, _file("--token-file", "SAFE_PSRL_TOKEN_FILE", "A file with a token; or set SAFE_PSRL_TOKEN.")
    ] = None


class Credentials(TypedDict):
    """Arguments for `Client` and `AsyncClient`."""

    credentials: "grpc.ChannelCredentials | None"
    token: str | None


_given: ContextVar[Given] = ContextVar("given", default=Given())  # noqa: B039  # a tuple


def with_credentials(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options, whose values `client_credentials` uses while it runs."""
    signature = inspect.signature(command)

    @wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        _given.set(Given(**{name: named.pop(name) for name in Given._fields}))
        command(*arguments, **named)

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Given._field_defaults[name], annotation=kind)
        for name, kind in Given.__annotations__.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *options])  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = command.__annotations__ | Given.__annotations__
    return run


def with_credentials_everywhere(app: typer.Typer) -> typer.Typer:
    """`with_credentials` for all commands of a group."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = with_credentials(command.callback)
    return app


def client_credentials() -> Credentials:
    """From the options of the running command. Raises `InvalidCredentialsError`."""
    from safe_psrl_client import tls_credentials  # noqa: PLC0415

    given = _given.get()
    tls = given.tls or given.tls_ca or given.tls_cert or given.tls_key
    credentials = tls_credentials(given.tls_ca, given.tls_cert, given.tls_key) if tls else None
    return Credentials(credentials=credentials, token=_token(given.token_file))


def _token(file: Path | None) -> str | None:
    from safe_psrl_client import InvalidCredentialsError  # noqa: PLC0415

    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidCredentialsError(f"token file {file}: {getattr(error, 'strerror', None) or 'is not text'}") from None


def options_of(settings: list[str]) -> dict[str, Any]:
    """`["pessimism_coefficient=0.1"]` by name. Values are JSON, or else text."""
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise typer.BadParameter(f"write KEY=VALUE, not {setting!r}", param_hint="--set")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options
