"""`safe-psrl serve`: the service in the foreground."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from safe_psrl_cli.connection import USER_MISTAKE, leave

PANEL = "Security"
BACKUP_PANEL = "Backups of sqlite:DIR"
STORE_FAILED = 74  # EX_IOERR
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def serve(
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; see --print-config for all settings.", dir_okay=False)
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="gRPC address, HOST:PORT or unix:PATH.", show_default="127.0.0.1:50551")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="HTTP address of /metrics and /healthz; '' for none.", show_default="127.0.0.1:9464")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="sqlite:DIR, postgresql://HOST/DB or memory:.", show_default="sqlite:safe-psrl-data")
    ] = None,
    warm_up: Annotated[
        str | None,
        typer.Option(metavar="METHOD", help="Load only this method's kernels before serving.", show_default="all"),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send traces to this OpenTelemetry collector, such as http://127.0.0.1:4317."),
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="console or json.", show_default="console")] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate chain of the service, PEM; enables TLS.", rich_help_panel=PANEL)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.", rich_help_panel=PANEL)] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Authority of clients' certificates, PEM; enables mutual TLS.", rich_help_panel=PANEL)
    ] = None,
    identities: Annotated[
        Path | None,
        typer.Option(
            help="Identities and their roles: the file of `safe-psrl token`. Other callers are rejected.", rich_help_panel=PANEL
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Allow plain text outside the loopback interface.", rich_help_panel=PANEL),
    ] = None,
    backup_to: Annotated[
        Path | None,
        typer.Option(help="Back up into this directory while serving.", rich_help_panel=BACKUP_PANEL, file_okay=False),
    ] = None,
    backup_every: Annotated[
        str | None, typer.Option(help="Interval: 30m, 1h, 1d, or seconds.", show_default="1h", rich_help_panel=BACKUP_PANEL)
    ] = None,
    backup_keep: Annotated[
        int | None, typer.Option(help="Number of newest backups to keep.", show_default="24", rich_help_panel=BACKUP_PANEL)
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the effective configuration as TOML, and exit.")
    ] = False,
) -> None:
    """Run the service until SIGTERM or Ctrl-C, then finish current calls, take snapshots, and exit.

    Settings come from the defaults, then --config, then the environment (SAFE_PSRL_LISTEN,
    SAFE_PSRL_LIMITS__MAX_AGENTS, …), then the flags.

    Examples:

    safe-psrl serve --store sqlite:data

    safe-psrl serve --store sqlite:data --backup-to backups --backup-every 1h --backup-keep 24

    safe-psrl serve --listen 0.0.0.0:50551 --tls-cert server.pem --tls-key server.key --identities identities.toml
    """
    from safe_psrl_server.config import ConfigError, load_config  # noqa: PLC0415

    flags = {
        "listen": listen,
        "metrics": metrics,
        "store": store,
        "warm_up": warm_up,
        "otlp": otlp,
        "log_format": log_format,
        "security.certificate": tls_cert,
        "security.key": tls_key,
        "security.client_ca": tls_client_ca,
        "security.identities": identities,
        "security.insecure": insecure,
        "backups.directory": backup_to,
        "backups.every_seconds": None if backup_every is None else _seconds(backup_every),
        "backups.keep": backup_keep,
    }
    try:
        settings = load_config(config, os.environ, flags)
    except ConfigError as error:
        leave(str(error), USER_MISTAKE)
    if settings.backups.directory is None and not (backup_every is None and backup_keep is None):
        leave("--backup-every and --backup-keep need --backup-to DIR: without it no backups are made", USER_MISTAKE)
    if print_config:
        import tomli_w  # noqa: PLC0415

        typer.echo(tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True)), nl=False)
        return

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is imported: our own line reports a port that is taken
    import asyncio  # noqa: PLC0415

    import uvloop  # noqa: PLC0415

    from safe_psrl_server.logs import log_libraries, set_up_logs  # noqa: PLC0415
    from safe_psrl_server.server import Server, failure_line  # noqa: PLC0415
    from safe_psrl_server.store import StoreError, StoreFailedError  # noqa: PLC0415

    async def run() -> None:
        server = Server(settings)

        def report() -> None:
            if settings.log_format == "console":
                typer.echo(_serving_line(server.target, settings.store, server.metrics_url))

        try:
            await server.run(report)
        except StoreFailedError as error:
            typer.echo(f"safe-psrl: {failure_line(error)}", err=True)
            sys.stderr.flush()
            os._exit(STORE_FAILED)  # without finishing calls: the state may be wrong

    set_up_logs(settings.log_format, settings.log_level)
    log_libraries()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except (ConfigError, StoreError) as error:
        leave(str(error), USER_MISTAKE)


def _seconds(interval: str) -> float:
    unit = UNITS.get(interval[-1:])
    try:
        return float(interval[:-1]) * unit if unit else float(interval)
    except ValueError:
        leave(f"--backup-every must be a time like 30m, 1h or 1d, got {interval!r}", USER_MISTAKE)


def _serving_line(target: str, store: str, metrics_url: str) -> str:
    """Where a service that is ready can be reached, and where its data are."""
    from safe_psrl_server.store import redacted_address  # noqa: PLC0415

    scheme, _, directory = store.partition(":")
    data = {"sqlite": str(Path(directory).absolute()), "memory": "memory only"}.get(scheme, redacted_address(store))
    metrics = f"metrics at {metrics_url}" if metrics_url else "no metrics"
    return f"Serving on {target}; data in {data}; {metrics}; live page: safe-psrl console --target {target}"
