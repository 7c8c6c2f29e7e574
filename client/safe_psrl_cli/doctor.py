"""`safe-psrl doctor`: what may keep the service or a client from working here, one line for each check."""

import os
import platform
import shutil
import socket
import sqlite3
import ssl
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from safe_psrl_cli.connection import USER_MISTAKE, AsJson, client_credentials, leave, print_json, say

if TYPE_CHECKING:
    from safe_psrl_server.config import ServerConfig

PACKAGES: Final = ("safe-psrl", "grpcio", "grpcio-status", "grpcio-health-checking", "protobuf", "numpy", "numba", "scipy")
WAL_RESET_FIXED: Final = ((3, 44, 6), (3, 50, 7), (3, 51, 3))  # of each branch; see sqlite.org/wal.html
LEAST_FREE_BYTES: Final = 10**9
SLOW_SYNC_SECONDS: Final = 0.02
CLOCK_SECONDS: Final = 0.2
OLDEST_YEAR: Final = 2025
SOON_DAYS: Final = 14
TARGET_SECONDS: Final = 2.0


class Finding(NamedTuple):
    """The result of a check. `detail` of one that is not ok states what to do."""

    check: str
    ok: bool
    detail: str


def doctor(
    target: Annotated[str | None, typer.Option(metavar="ADDR", help="Also check the service at this address.")] = None,
    store: Annotated[str | None, typer.Option(metavar="STORE", help="The service's store, as in `serve`.")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="The service's configuration file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and, with --target, a service. Exit code 1 if something needs a change.

    Example: safe-psrl doctor --config service.toml --target 127.0.0.1:50551
    """
    from safe_psrl_server.config import ConfigError, load_config  # noqa: PLC0415

    try:
        settings = load_config(config, os.environ, {"store": store})
    except ConfigError as error:
        leave(str(error), USER_MISTAKE)
    findings = []
    for finding in _findings(settings, target):
        findings.append(finding)
        if not as_json:
            say(f"{'ok' if finding.ok else 'FIX':4} {finding.check:12} {finding.detail}")
    if as_json:
        print_json([finding._asdict() for finding in findings])
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _findings(settings: "ServerConfig", target: str | None) -> Iterator[Finding]:
    yield Finding("python", True, platform.python_version())
    packages = _packages()
    yield packages
    if not packages.ok:
        return  # the other checks import them
    yield _kernels()
    yield _sqlite()
    yield _clock()
    yield from _store(settings.store)
    serves = _service(settings.listen).ok
    for option, address in (("listen", settings.listen), ("metrics", settings.metrics)):
        if address and not address.startswith("unix"):
            yield _port(option, address, serves=serves)
    if settings.security.certificate is not None and settings.security.key is not None:
        yield _certificate(settings.security.certificate, settings.security.key)
    if target is not None:
        yield _service(target)


def _found(check: str, ok: bool, detail: str, advice: str) -> Finding:
    return Finding(check, ok, detail if ok else f"{detail}: {advice}")


def _packages() -> Finding:
    versions, missing = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    detail = f"missing {', '.join(missing)}" if missing else ", ".join(versions)
    return _found("packages", not missing, detail, "pip install 'safe-psrl[server]'")


def _kernels() -> Finding:
    """numba's cache of compiled code."""
    from safe_psrl.methods.episode import begin_episode  # noqa: PLC0415

    kernel: Any = begin_episode
    directory = Path(kernel.stats.cache_path)
    if any(directory.glob("*.nbi")):
        return Finding("kernels", True, f"compiled, in {directory}")
    writable = os.access(directory if directory.exists() else directory.parent, os.W_OK)
    detail = f"not compiled yet: the first start takes a minute and writes to {directory}"
    return _found("kernels", writable, detail, "it is not writable; set NUMBA_CACHE_DIR")


def _sqlite() -> Finding:
    found = sqlite3.sqlite_version_info
    branches = {fixed[:2]: fixed for fixed in WAL_RESET_FIXED}
    if found >= branches.get(found[:2], WAL_RESET_FIXED[-1]):
        return Finding("sqlite", True, sqlite3.sqlite_version)
    harmless = "harmless here, as one connection writes; let no other program write to the database or checkpoint it"
    return Finding("sqlite", True, f"{sqlite3.sqlite_version}, which has the WAL-reset bug: {harmless}")


def _clock() -> Finding:
    wall, monotonic = time.time(), time.monotonic()
    time.sleep(CLOCK_SECONDS)
    drift = (time.time() - wall) - (time.monotonic() - monotonic)
    now = datetime.now(UTC)
    sane = now.year >= OLDEST_YEAR and abs(drift) < CLOCK_SECONDS / 4
    return _found("clock", sane, f"{now:%Y-%m-%d %H:%M:%S} UTC, drift {drift:+.3f} s", "synchronise the clock by NTP")


def _store(address: str) -> Iterator[Finding]:
    from safe_psrl_server.store import StoreError, open_store, redacted_address  # noqa: PLC0415

    shown = redacted_address(address)
    try:
        open_store(address)  # checks the address alone
    except StoreError as error:
        yield Finding("store", False, str(error))
        return
    try:
        if address == "memory:":
            return
        if address.startswith("sqlite:"):
            yield from _disk(Path(address.removeprefix("sqlite:")))
        found, needed = _sqlite_schema(address) if address.startswith("sqlite:") else _postgres_schema(address)
    except (OSError, sqlite3.Error) as error:
        yield Finding("store", False, " ".join(f"{shown}: {error}".split()))
        return
    detail = "no tables yet; the service creates them" if found is None else f"schema {found}"
    advice = f"this release needs {needed}; use the release that wrote it"
    yield _found("schema", found in {None, needed}, f"{shown}: {detail}", advice)


def _disk(directory: Path) -> Iterator[Finding]:
    """Room and the time of a durable write, in `directory` or where it would be created."""
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    yield _found("disk", free >= LEAST_FREE_BYTES, f"{free / 1e9:,.1f} GB free at {existing}", "free at least 1 GB")
    seconds = []
    with _temporary_file(existing) as file:
        for _ in range(9):
            file.write(b"0" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    yield _found("fsync", median < SLOW_SYNC_SECONDS, f"{1000 * median:.2f} ms per durable write", "use a local SSD")


def _temporary_file(directory: Path) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=directory)
    except OSError as error:
        message = f"cannot write to {directory} ({error.strerror}); change its permissions, or use another --store"
        raise OSError(message) from None


def _sqlite_schema(address: str) -> tuple[int | None, int]:
    """The schema version that is there, None without tables, and the one that this release needs."""
    from safe_psrl_server.store.sqlite.store import DATABASE_FILE  # noqa: PLC0415
    from safe_psrl_server.store.sqlite.streams import SCHEMA_VERSION  # noqa: PLC0415

    path = Path(address.removeprefix("sqlite:")) / DATABASE_FILE
    if not path.exists():
        return None, SCHEMA_VERSION
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0]), SCHEMA_VERSION


def _postgres_schema(address: str) -> tuple[int | None, int]:
    import psycopg  # noqa: PLC0415

    from safe_psrl_server.store.postgres.schema import SCHEMA_VERSION  # noqa: PLC0415

    try:
        with psycopg.connect(address, connect_timeout=int(TARGET_SECONDS)) as db:
            row = db.execute("SELECT version FROM safe_psrl_schema").fetchone()
    except psycopg.errors.UndefinedTable:
        return None, SCHEMA_VERSION
    except psycopg.Error as error:
        raise OSError(str(error)) from None
    return int(row[0]) if row else 0, SCHEMA_VERSION


def _port(option: str, address: str, *, serves: bool) -> Finding:
    """Whether the service can listen there. `serves`: a service of ours is running, so the port may be its own."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host.strip("[]"), int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        if serves:
            return Finding(option, True, f"{address} is in use, and a Safe PSRL service is running")
        reason = os.strerror(error.errno) if error.errno else error
        return Finding(option, False, f"{address}: {reason}; stop the program there, or use --{option} HOST:PORT")
    return Finding(option, True, f"{address} is free")


def _certificate(certificate: Path, key: Path) -> Finding:
    """Until when it is valid, by a handshake in memory with a client that trusts it."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server.load_cert_chain(certificate, key, password=str)  # an empty password, instead of a prompt
        client.load_verify_locations(certificate)
        near, far = client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)
        for end in (near, far, near):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        names = near.getpeercert() or {}
    except (OSError, ValueError) as error:
        reasons = (getattr(error, name, None) for name in ("verify_message", "reason", "strerror"))
        reason = next(filter(None, reasons), error)
        return Finding("certificate", False, f"{certificate}: {reason}; replace it, and its key")
    days = (ssl.cert_time_to_seconds(str(names["notAfter"])) - time.time()) / 86400
    return _found("certificate", days > SOON_DAYS, f"{certificate} is valid for {days:,.0f} days", "renew it")


def _service(target: str) -> Finding:
    import grpc  # noqa: PLC0415
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    from safe_psrl_client import SafePsrlClientError  # noqa: PLC0415
    from safe_psrl_client.channel import open_channel  # noqa: PLC0415

    stub: Any = health_pb2_grpc.HealthStub
    try:
        with open_channel(target, client_credentials()["credentials"]) as channel:
            reply, call = stub(channel).Check.with_call(health_pb2.HealthCheckRequest(), timeout=TARGET_SECONDS)
    except SafePsrlClientError as error:
        return Finding("service", False, str(error))
    except grpc.RpcError as error:
        return Finding("service", False, f"no service at {target}: start it with safe-psrl serve ({error.details()})")
    theirs, ours = dict(call.trailing_metadata() or ()).get("safe-psrl-version", "unknown"), version("safe-psrl")
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        return Finding("service", False, f"{target} is not serving: wait, or read its log")
    return _found("service", theirs == ours, f"{target} is serving, version {theirs}", f"this is {ours}; use the same")
