"""`safe-psrl console`: the live web page for operators, in a process of its own."""

import socket
from functools import partial
from typing import Annotated

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, USER_MISTAKE, Target, leave, reported_errors
from safe_psrl_cli.credentials import client_credentials

DEFAULT_LISTEN = "127.0.0.1:8551"


def console(
    target: Target = DEFAULT_TARGET,
    listen: Annotated[
        str, typer.Option(metavar="ADDR", help="Where browsers find the page: HOST:PORT; port 0 takes a free one.")
    ] = DEFAULT_LISTEN,
) -> None:
    """Show the agents of a service on a live web page, until SIGTERM or Ctrl-C.

    Are the constraints holding, and how far are they from not holding? Each agent's cost against its budget, its
    learning, its policy and posterior; pause, resume and export. The page is a client like any other: it does not slow the
    service, waits for one that is not up yet, and finds one again that was restarted.

    It has no login: whoever reaches the page acts with the credentials given here. On another interface than the loopback
    one, put a proxy with a login in front of it.

    Examples:

    safe-psrl console

    safe-psrl console --target 10.0.0.7:50551 --listen 127.0.0.1:8600
    """
    from safe_psrl_client import AsyncClient, Client  # noqa: PLC0415

    with reported_errors(target):
        credentials = client_credentials()
        Client(target, **credentials).close()  # what is wrong with them is said now, not in a browser
    try:
        from safe_psrl_console.application import Console  # noqa: PLC0415
    except ModuleNotFoundError as error:
        leave(f"the console needs {error.name}: pip install 'safe-psrl[console]'", USER_MISTAKE)

    with _bound(listen) as listener:
        url = _url(listener)
        Console(partial(AsyncClient, target, **credentials), listener).run(
            lambda: typer.echo(f"The console of {target} is at {url} (Ctrl-C stops it)")
        )


def _bound(listen: str) -> socket.socket:
    """Bound here, so that an address that cannot be used is one line, and nobody comes in between."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        leave(f"listen {listen!r}: write HOST:PORT, for example {DEFAULT_LISTEN}", USER_MISTAKE)
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        leave(f"cannot listen on {listen}: {error.strerror}; --listen chooses another, port 0 a free one", USER_MISTAKE)


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
