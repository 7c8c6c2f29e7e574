"""The server's configuration: defaults, then a TOML file, then the environment, then flags. Validated before anything starts.

In the environment a setting is SAFE_PSRL_ and its name in capitals, with two underscores between section and setting:
SAFE_PSRL_LISTEN, SAFE_PSRL_LIMITS__MAX_AGENTS. pydantic-settings is not used: it cannot leave out the process's environment,
which an embedded server must not read, and it ignores variables such as SAFE_PSRL_LISTEN__PORT without an error.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PREFIX = "SAFE_PSRL_"


class ConfigError(ValueError):
    """A setting is invalid; one line with its name, the problem and the value."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Section):
    """Bounds on what clients can make the server use."""

    max_agents: int = Field(10_000, ge=1, description="Maximum number of agents.")
    max_resident_agents: int = Field(
        10_000,
        ge=1,
        description="Agents kept in memory; beyond it the least recently used are evicted, and loaded again at their next use.",
    )
    max_resident_bytes: int = Field(
        0, ge=0, description="Memory of the agents kept, estimated from their tables; 0: as much as max_resident_agents need."
    )
    max_table_entries: int = Field(20_000_000, ge=1, description="Maximum entries in one agent's transition counts.")
    max_total_table_entries: int = Field(
        500_000_000, ge=1, description="Maximum entries of all agents together, in memory or not."
    )
    max_plan_work: int = Field(
        5_000_000_000, ge=1, description="Maximum products of one plan: states * actions * next states * horizon * signals."
    )
    max_message_bytes: int = Field(4 * 1024 * 1024, ge=1024, description="Maximum size of a received message, uncompressed.")
    max_import_bytes: int = Field(256 * 1024 * 1024, ge=1024, description="Maximum size of an imported agent.")
    max_concurrent_calls: int = Field(4096, ge=1, description="Maximum concurrent calls of authenticated callers.")
    max_calls_per_connection: int = Field(
        900,
        ge=1,
        description="Maximum concurrent calls and streams on one connection; further ones wait, or fail with UNAVAILABLE.",
    )
    max_public_calls: int = Field(256, ge=1, description="Maximum concurrent calls that need no credential, such as health.")
    max_public_calls_per_address: int = Field(32, ge=1, description="Maximum of such calls from one address.")
    watch_seconds: float = Field(600.0, gt=0, description="Maximum duration of a watch; clients watch again.")
    max_stream_backlog: int = Field(
        256, ge=1, description="Maximum calls of one StepStream whose replies the client has not read."
    )
    stream_idle_seconds: float = Field(300.0, gt=0, description="After this time without a message a client's stream is ended.")
    max_connection_age_seconds: float = Field(
        3600.0, gt=0, description="After this time a connection is closed gracefully; clients reconnect."
    )
    connection_grace_seconds: float = Field(120.0, gt=0, description="Time for the calls on a connection that is being closed.")
    call_seconds: float = Field(60.0, gt=0, description="Maximum duration of a call that writes, whatever its deadline.")
    max_agents_in_metrics: int = Field(
        1_000, ge=0, description="Maximum agents with series in /metrics: the highest cost ratios. Totals are about all."
    )
    planning_threads: int = Field(2, ge=1, le=256, description="Long plans computed concurrently.")
    episode_timeout_seconds: float = Field(
        3600.0, gt=0, description="Default for agents: after this time without activity an open episode can be replaced."
    )


class Quotas(_Section):
    """Defaults for each identity; its entry can override them. 0 means unlimited. Without identities all callers share one."""

    calls_per_second: float = Field(0.0, ge=0, description="Calls and stream messages per second, on average.")
    burst_seconds: float = Field(2.0, gt=0, description="Size of a burst, in seconds of calls_per_second.")
    concurrent_calls: int = Field(1024, ge=0, description="Concurrent calls of an identity.")
    max_agents: int = Field(0, ge=0, description="Agents that match the identity's patterns.")


class Security(_Section):
    """Without `identities` every caller may do everything; without `certificate` connections are in plain text."""

    identities: Path | None = Field(None, description="File of tokens and certificate names with their roles.")
    certificate: Path | None = Field(None, description="The server's certificate chain, PEM.")
    key: Path | None = Field(None, description="Its private key, PEM.")
    client_ca: Path | None = Field(None, description="The authority that signs clients' certificates: mutual TLS.")
    insecure: bool = Field(False, description="Allow plain text on interfaces other than loopback.")
    open_reflection: bool = Field(False, description="Allow reflection without a credential.")
    open_metrics: bool = Field(True, description="Allow /metrics without a token. /healthz never needs one.")

    @model_validator(mode="after")
    def _whole(self) -> "Security":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key must be set together")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key")
        if self.client_ca is not None and self.identities is None:
            raise ValueError("client_ca needs identities, which assign roles to certificates")
        return self


class SnapshotPolicy(_Section):
    """When snapshots are taken. Recovery reads about `every_events` events of an agent at most."""

    every_events: int = Field(2_000, ge=1, description="After this many events of an agent, or four times as many steps.")
    every_seconds: float = Field(300.0, gt=0, description="When the oldest event newer than the snapshot has this age.")
    check_seconds: float = Field(10.0, gt=0, description="Interval of the check.")


class Backups(_Section):
    """Backups of the embedded store while the service runs."""

    directory: Path | None = Field(None, description="Directory for the backups of this server alone; unset: no backups.")
    every_seconds: float = Field(3600.0, ge=1, description="Interval.")
    keep: int = Field(24, ge=1, description="Number of newest backups to keep.")


class DeclaredAgent(_Section):
    """An agent that is created at start-up, or brought to this definition if it exists."""

    name: str
    preset: str | None = Field(None, description="streaming-buffer, inventory, factored-toy or continuing-buffer.")
    spec: Path | None = Field(None, description="A .toml or .json file with a specification.")
    seed: int = Field(0, ge=0, le=2**63 - 1)
    options: dict[str, Any] = Field(default_factory=dict, description="Options of Safe PSRL: method, confidence, …")
    drift: dict[str, Any] = Field(default_factory=dict, description="Drift detection: on_detect, …")

    @model_validator(mode="after")
    def _one_definition(self) -> "DeclaredAgent":
        if (self.preset is None) == (self.spec is None):
            raise ValueError("needs either a preset or a spec")
        return self


class ServerConfig(_Section):
    """The whole configuration."""

    listen: str = Field("127.0.0.1:50551", description="Address of the gRPC service: HOST:PORT or unix:PATH.")
    metrics: str = Field(
        "127.0.0.1:9464", description="Address of /metrics and /healthz: HTTP on loopback, else HTTPS; empty: none."
    )
    metrics_agents: str = Field(
        "*",
        description="Agents with series in /metrics, such as cell/*; at most limits.max_agents_in_metrics of them.",
    )
    store: str = Field("sqlite:safe-psrl-data", description="sqlite:DIRECTORY, postgresql://… or memory:.")
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drain_seconds: float = Field(20.0, ge=0, description="Time for running calls to finish at shutdown.")
    warm_up: str = Field(
        "all", description="The method whose kernels are loaded before the service is ready; others load at their first use."
    )
    otlp: str = Field("", description="OpenTelemetry collector that receives traces: http(s)://HOST:PORT; empty: none.")
    reflection: bool = Field(True, description="Serve gRPC reflection.")
    refresh_seconds: float = Field(
        5.0, gt=0, description="How far metrics and WatchAgents may lag behind other replicas on the same database."
    )
    limits: Limits = Limits()
    quotas: Quotas = Quotas()
    security: Security = Security()
    snapshots: SnapshotPolicy = SnapshotPolicy()
    backups: Backups = Backups()
    agents: list[DeclaredAgent] = Field(default_factory=list, description="Agents that must exist.")


def load_config(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> ServerConfig:
    """The validated configuration. Flags are `setting` or `section.setting`; None means not given. Raises `ConfigError`."""
    settings = _from_file(file) if file is not None else {}
    for name, value in environment.items():
        if name.startswith(PREFIX) and name.removeprefix(PREFIX).lower().split("__")[0] in ServerConfig.model_fields:
            _put(settings, name.removeprefix(PREFIX).lower().split("__"), value)
    for name, value in flags.items():
        if value is not None:
            _put(settings, name.split("."), value)
    try:
        return ServerConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "configuration"
        problem = "there is no such setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise ConfigError(f"{place}: {problem} (got {first['input']!r})") from None


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration file {file}: {getattr(error, 'strerror', None) or error}") from None


def _put(settings: dict[str, Any], path: list[str], value: Any) -> None:
    for section in path[:-1]:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise ConfigError(f"{section}: must be a section to set {PREFIX}{'__'.join(path).upper()}, got {settings!r}")
    settings[path[-1]] = value
