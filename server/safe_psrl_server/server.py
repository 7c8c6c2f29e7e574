"""The composition root: the only place that starts things. `Server` builds; `start`, `drain` and `run` do."""

import asyncio
import gc
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from safe_psrl import warm_up
from safe_psrl.errors import SafePsrlError
from safe_psrl.problem.documents import (
    drift_from_document,
    options_from_document,
    options_to_document,
    parse_document,
    spec_from_document,
)
from safe_psrl.problem.options import METHODS
from safe_psrl.problem.presets import preset
from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2, control_pb2_grpc, model_pb2
from safe_psrl_server.agents.administration import Administration
from safe_psrl_server.agents.commands import AgentCommands
from safe_psrl_server.agents.definition import DEFAULT_METHOD
from safe_psrl_server.agents.messages import cmdp_to_message
from safe_psrl_server.agents.service import AgentService
from safe_psrl_server.config import ConfigError, DeclaredAgent, ServerConfig
from safe_psrl_server.errors import DataLossError, ServiceError
from safe_psrl_server.metrics.agents import AgentCollector
from safe_psrl_server.metrics.calls import CallMetrics
from safe_psrl_server.metrics.http import HttpEndpoint
from safe_psrl_server.metrics.meter import open_meter
from safe_psrl_server.rpc.admin import AdminService
from safe_psrl_server.rpc.control import ControlService
from safe_psrl_server.rpc.errors import Rejections
from safe_psrl_server.rpc.health import HealthService
from safe_psrl_server.rpc.middleware import Services
from safe_psrl_server.security.access import AccessControl, may_scrape
from safe_psrl_server.security.identities import IdentitiesError, IdentityStore
from safe_psrl_server.security.tls import certificates_of, is_local
from safe_psrl_server.store import StoreFailedError, open_store, redacted_address
from safe_psrl_server.store.scheduled_backup import scheduled_backup

ALL_METHODS: Final = "all"
DECLARED: Final = "declared in the configuration"

log = structlog.get_logger()


class Server:
    """One process's service."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.target = ""  # where clients connect, once started
        self.metrics_port: int | None = None
        self.metrics_url = ""  # empty if there are none
        meter = open_meter(config.otlp)
        self._store = open_store(config.store)
        self.agents = AgentService(
            self._store, config.limits, config.snapshots, meter=meter, refresh_seconds=config.refresh_seconds
        )
        self._commands, self._administration = AgentCommands(self.agents), Administration(self.agents)
        self._health = HealthService(config.limits.watch_seconds)
        self._identities: IdentityStore | None = None
        self._http: HttpEndpoint | None = None
        self._backups: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen, then recover, then serve. Calls that come before that are UNAVAILABLE. Raises `StoreError`, `ConfigError`."""
        self._identities = self._load_identities()
        backups = scheduled_backup(self.config.store, self.config.backups, self.agents.meter.registry)
        await self._store.open()
        self._grpc = self._build_grpc()
        try:
            self.target = await self._listen()
            self._http = self._start_http()
            began = time.monotonic()
            await asyncio.to_thread(warm_up, self._warm_methods())
            warmed = time.monotonic() - began
            await self.agents.open()
            await self._declare_agents()
        except BaseException:
            await self._grpc.stop(None)
            await self.agents.close()
            if self._http is not None:
                self._http.stop()
            await self._store.close()
            raise
        self.agents.start_upkeep()
        self._backups = None if backups is None else asyncio.create_task(backups.run())
        self._health.serve()
        log.info(
            "serving",
            target=self.target,
            metrics=self.metrics_port,
            store=redacted_address(self.config.store),
            agents=self.agents.registry.size.agents,
            recovery_seconds=round(self.agents.recovery_seconds, 3),
            warm_up_seconds=round(warmed, 3),
        )

    async def drain(self) -> None:
        """Stop gracefully: reject new calls, finish running ones, take snapshots, close the store."""
        log.info("draining", seconds=self.config.drain_seconds)
        self._health.drain()
        self.agents.draining.set()
        if self._backups is not None:
            self._backups.cancel()
            await asyncio.wait([self._backups])
        await self._grpc.stop(self.config.drain_seconds)
        await self.agents.close()
        await self._store.close()
        if self._http is not None:
            self._http.stop()
        await asyncio.to_thread(self.agents.meter.close)
        log.info("stopped")

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT, then drain. Raises `StoreFailedError` at once if a commit fails."""
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        await self.start()
        gc.collect()
        gc.freeze()  # modules and kernels live until the end: a full collection took 50 ms with them, and 2 ms without
        on_ready()
        await self.until(stopping)
        self.raise_failure()
        await self.drain()
        self.raise_failure()

    async def until(self, stopping: asyncio.Event) -> None:
        """Return when `stopping` is set, or when a commit has failed."""
        events = [asyncio.ensure_future(event.wait()) for event in (stopping, self.agents.runtime.failed)]
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        for event in events:
            event.cancel()

    def raise_failure(self) -> None:
        """Raise the `StoreFailedError` that stopped the server, if there is one."""
        if self.agents.runtime.failure is not None:
            raise self.agents.runtime.failure

    def _build_grpc(self) -> grpc.aio.Server:
        limits = self.config.limits
        server = grpc.aio.server(
            interceptors=self.agents.meter.interceptors(),
            options=[
                ("grpc.max_receive_message_length", limits.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.max_calls_per_connection),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.server_handshake_timeout_ms", 10_000),
                ("grpc.max_connection_age_ms", int(limits.max_connection_age_seconds * 1000)),
                ("grpc.max_connection_age_grace_ms", int(limits.connection_grace_seconds * 1000)),
            ],
        )
        security = self.config.security
        access = AccessControl(self._identities, self.config.quotas, limits, open_reflection=security.open_reflection)
        metrics, rejections = CallMetrics(self.agents.meter.registry), Rejections(self.agents.meter)
        services: Any = Services(metrics, access, rejections, limits.stream_idle_seconds)
        control = ControlService(self._commands, limits.max_stream_backlog)
        control_pb2_grpc.add_ControlServiceServicer_to_server(control, services)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(self._administration, self.config.quotas), services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, services)
        if self.config.reflection:
            names = (control_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR)
            shown = [service.full_name for file in names for service in file.services_by_name.values()]
            mirror: Any = reflection.aio.ReflectionServicer([*shown, reflection.SERVICE_NAME])
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(mirror, services)  # type: ignore[no-untyped-call]
        server.add_generic_rpc_handlers((services,))
        return server

    async def _listen(self) -> str:
        address = self.config.listen
        host, _, number = address.rpartition(":")
        if not address.startswith("unix:") and not (host and number.isdecimal() and int(number) <= 65535):
            raise ConfigError(f"listen: {address!r} must be HOST:PORT or unix:PATH")  # gRPC would take 65536 for 0
        try:
            port = self._add_port(address)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ConfigError(f"listen: cannot listen on {address!r}: is the port taken, or the address wrong?")
        await self._grpc.start()
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    def _add_port(self, address: str) -> int:
        certificates = certificates_of(self.config.security)
        if certificates is not None:
            return self._grpc.add_secure_port(address, certificates.credentials())
        self._allow_plain_text("listen", address)
        return self._grpc.add_insecure_port(address)

    def _allow_plain_text(self, setting: str, address: str) -> None:
        """On local addresses, and elsewhere with `insecure`. Raises `ConfigError`."""
        if is_local(address):
            return
        if not self.config.security.insecure:
            raise ConfigError(
                f"{setting}: {address!r} is not on the loopback interface: set a certificate, or --insecure for plain text"
            )
        log.warning("plain text: anyone on the network can read and change all traffic", **{setting: address})

    def _load_identities(self) -> IdentityStore | None:
        if self.config.security.identities is None:
            return None
        try:
            return IdentityStore(self.config.security.identities)
        except IdentitiesError as error:
            raise ConfigError(f"security.identities: {error}") from None

    def _may_scrape(self, authorization: str) -> bool:
        return self._identities is None or self.config.security.open_metrics or may_scrape(self._identities, authorization)

    def _start_http(self) -> HttpEndpoint | None:
        if not self.config.metrics:
            return None
        host, _, port = self.config.metrics.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"metrics: {self.config.metrics!r} must be HOST:PORT, or empty for none")
        certificates = None if is_local(self.config.metrics) else certificates_of(self.config.security)
        if certificates is None:
            self._allow_plain_text("metrics", self.config.metrics)
        else:
            certificates.context()  # raises `ConfigError` now
        registry = self.agents.meter.registry
        registry.register(AgentCollector(self.agents, self._store, asyncio.get_running_loop(), self.config.metrics_agents))
        tls = None if certificates is None else certificates.context
        place = host.removeprefix("[").removesuffix("]"), int(port)
        endpoint = HttpEndpoint(place, registry, self._is_ready, self._may_scrape, tls)
        try:
            self.metrics_port = endpoint.start()
        except OSError as error:
            raise ConfigError(f"metrics: cannot listen on {self.config.metrics}: {error.strerror}") from None
        self.metrics_url = f"{'http' if tls is None else 'https'}://{host}:{self.metrics_port}/metrics"
        return endpoint

    def _warm_methods(self) -> tuple[str, ...]:
        name = self.config.warm_up
        if name not in {ALL_METHODS, *METHODS}:
            raise ConfigError(f"warm_up: {name!r} must be one of {', '.join((ALL_METHODS, *METHODS))}")
        return METHODS if name == ALL_METHODS else (name,)

    def _is_ready(self) -> bool:
        return self.agents.runtime.ready and not self.agents.draining.is_set()

    async def _declare_agents(self) -> None:
        for declared in self.config.agents:
            try:
                changes = await self._administration.declare(declared.name, _declared_spec(declared), DECLARED)
                if changes:
                    log.info("agent updated", agent=declared.name, reason=DECLARED, changes=changes)
            except DataLossError as error:
                log.critical("declared agent is quarantined", agent=declared.name, damage=str(error))
            except (ServiceError, SafePsrlError, OSError) as error:
                raise ConfigError(f"agents: {declared.name}: {error}") from None


def _declared_spec(declared: DeclaredAgent) -> model_pb2.AgentSpec:
    spec = preset(declared.preset) if declared.preset is not None else _spec_in(declared.spec)
    options = options_to_document(options_from_document({"method": DEFAULT_METHOD, **declared.options}))
    message = model_pb2.AgentSpec(cmdp=cmdp_to_message(spec), options=model_pb2.SafePsrlOptions(**options), seed=declared.seed)
    drift_from_document(declared.drift)  # names a field that is wrong; the defaults are filled in later
    message.drift.CopyFrom(model_pb2.DriftOptions(**declared.drift))
    return message


def _spec_in(path: Path | None) -> Any:
    assert path is not None  # noqa: S101  # the configuration has one of both
    document = parse_document(path.read_text(encoding="utf-8"), path.suffix[1:])
    document.pop("transitions", None)  # for simulators only
    return spec_from_document(document)


def failure_line(error: StoreFailedError) -> str:
    """The last line of a server that stops because it cannot write."""
    return f"{error}. Stopped at once; nothing that was acknowledged is lost. Make room or repair the disk, then start again"
