"""`safe-psrl console`: the live web page for operators, in its own process."""

import socket
from functools import partial
from ipaddress import ip_address
from typing import Annotated

import typer

from safe_psrl_cli.connection import DEFAULT_TARGET, USER_MISTAKE, Target, client_credentials, leave, reported_errors

DEFAULT_LISTEN = "127.0.0.1:8551"


def console(
    target: Target = DEFAULT_TARGET,
    listen: Annotated[
        str, typer.Option(metavar="ADDR", help="Address of the page: HOST:PORT; port 0 chooses a free port.")
    ] = DEFAULT_LISTEN,
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name of the page in browsers, such as that of a proxy; may be repeated."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow plain text outside the loopback interface, without a login.")
    ] = False,
) -> None:
    """Show the agents of a service on a live web page, until SIGTERM or Ctrl-C.

    Whether the constraints hold, and by what margin: each agent's cost against its budget, its learning, policy and
    posterior; pause, resume and export. The page is a client of the service: it does not slow it down, waits until it is
    up, and reconnects after a restart.

    It has no login: everyone who reaches the page acts with the credentials given here. Outside the loopback interface, put
    a proxy with a login in front of it; --insecure is for a network where only that proxy can reach the page. Requests for
    other host names than localhost, its address and --host are rejected, as are those from pages of other sites.

    Examples:

    safe-psrl console

    safe-psrl console --target 10.0.0.7:50551 --listen 127.0.0.1:8600

    safe-psrl console --host console.example
    """
    from safe_psrl_client import AsyncClient, Client  # noqa: PLC0415

    with reported_errors(target):
        credentials = client_credentials()
        Client(target, **credentials).close()  # reports invalid ones now, not in a browser
    try:
        from safe_psrl_console.application import Console  # noqa: PLC0415
    except ModuleNotFoundError as error:
        leave(f"the console needs {error.name}: pip install 'safe-psrl[console]'", USER_MISTAKE)

    with _bound(listen, insecure=insecure) as listener:
        address, port = listener.getsockname()[:2]
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        Console(partial(AsyncClient, target, **credentials), listener, host or ()).run(
            lambda: typer.echo(f"The console of {target} is at {url} (Ctrl-C stops it)")
        )


def _bound(listen: str, *, insecure: bool) -> socket.socket:
    """Bound here, so that an unusable address is reported in one line, and the port cannot be taken in between."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        leave(f"listen {listen!r}: write HOST:PORT, for example {DEFAULT_LISTEN}", USER_MISTAKE)
    try:
        listener = socket.create_server((host, int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        leave(f"cannot listen on {listen}: {error.strerror}; --listen chooses another, port 0 a free one", USER_MISTAKE)
    if not insecure and not ip_address(listener.getsockname()[0]).is_loopback:
        leave(f"listen {listen!r} is not on the loopback interface: --insecure allows plain text without a login", USER_MISTAKE)
    return listener
