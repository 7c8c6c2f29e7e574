"""The server's configuration: defaults, then a TOML file, then the environment, then flags. Checked before anything starts.

In the environment a setting is SAFE_PSRL_ and its name in capitals, with two underscores between section and setting:
SAFE_PSRL_LISTEN, SAFE_PSRL_LIMITS__MAX_AGENTS.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PREFIX = "SAFE_PSRL_"


class ConfigError(ValueError):
    """A setting is wrong; one line that says which and why."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Section):
    """What the server refuses, so that no client can exhaust it."""

    max_agents: int = Field(10_000, ge=1, description="Agents that may exist.")
    max_table_entries: int = Field(20_000_000, ge=1, description="Entries of an agent's transition counts.")
    max_total_table_entries: int = Field(
        500_000_000, ge=1, description="The same of all agents together: what bounds the server's memory."
    )
    max_message_bytes: int = Field(64 * 1024 * 1024, ge=1024, description="Size of a message, either way.")
    max_concurrent_calls: int = Field(4096, ge=1, description="Calls under way at once; more are RESOURCE_EXHAUSTED.")
    max_stream_backlog: int = Field(256, ge=1, description="Calls of one StepStream that may wait for their reply to be read.")
    stream_idle_seconds: float = Field(
        300.0, gt=0, description="How long a client's stream may stay without a message before it is ended."
    )
    max_connection_age_seconds: float = Field(
        3600.0, gt=0, description="After which a connection is asked to end; clients open another one."
    )
    connection_grace_seconds: float = Field(120.0, gt=0, description="For calls on a connection that was asked to end.")
    call_seconds: float = Field(60.0, gt=0, description="How long a call that writes may take, whatever its own deadline.")
    max_agents_in_metrics: int = Field(
        1_000, ge=0, description="Agents with series of their own in /metrics: the first that were created."
    )
    planning_threads: int = Field(2, ge=1, le=256, description="Long plans made at once.")
    episode_timeout_seconds: float = Field(
        3600.0, gt=0, description="Default for agents: after so long without activity an open episode gives way."
    )


class Quotas(_Section):
    """What one identity may ask for, unless its entry says otherwise. 0 stands for no quota. Without identities, of all."""

    calls_per_second: float = Field(0.0, ge=0, description="Calls, and messages of streams, on average.")
    burst_seconds: float = Field(2.0, gt=0, description="Seconds' worth of calls that may come at once.")
    concurrent_calls: int = Field(0, ge=0, description="Calls under way at once.")
    max_agents: int = Field(0, ge=0, description="Agents among those that the identity may administer.")


class Security(_Section):
    """Who may connect. Without `identities` everybody may do everything; without `certificate` in plain text."""

    identities: Path | None = Field(None, description="The file of tokens and certificate names, with what each may do.")
    certificate: Path | None = Field(None, description="The server's certificate chain, PEM.")
    key: Path | None = Field(None, description="Its private key, PEM.")
    client_ca: Path | None = Field(None, description="The authority that clients' certificates need: mutual TLS.")
    insecure: bool = Field(False, description="Allow plain text on other interfaces than the loopback one.")
    open_reflection: bool = Field(False, description="Reflection without a credential, when identities are needed.")
    open_metrics: bool = Field(True, description="/metrics without a token, when identities are needed; /healthz always is.")

    @model_validator(mode="after")
    def _whole(self) -> "Security":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate needs a key, and a key a certificate")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs a certificate and a key of the server")
        if self.client_ca is not None and self.identities is None:
            raise ValueError("client_ca needs identities, which say what the certificates' owners may do")
        return self


class SnapshotPolicy(_Section):
    """When streams are shortened. Recovery reads at most `every_events` events, or what takes as long, and a little more."""

    every_events: int = Field(2_000, ge=1, description="After so many events of an agent, or four times as many steps.")
    every_seconds: float = Field(300.0, gt=0, description="When the oldest event that no snapshot holds is so old.")
    check_seconds: float = Field(10.0, gt=0, description="How often to look.")


class DeclaredAgent(_Section):
    """An agent that must exist when the server is ready; created if it does not."""

    name: str
    preset: str | None = Field(None, description="streaming-buffer, inventory or factored-toy.")
    spec: Path | None = Field(None, description="A .toml or .json file with a specification.")
    seed: int = Field(0, ge=0, le=2**63 - 1)
    options: dict[str, Any] = Field(default_factory=dict, description="Of Safe PSRL: pessimism_coefficient, …")

    @model_validator(mode="after")
    def _one_definition(self) -> "DeclaredAgent":
        if (self.preset is None) == (self.spec is None):
            raise ValueError("needs either a preset or a spec")
        return self


class ServerConfig(_Section):
    """All of it."""

    listen: str = Field("127.0.0.1:50551", description="Address of the gRPC service: HOST:PORT or unix:PATH.")
    metrics: str = Field("127.0.0.1:9464", description="Address of /metrics and /healthz over HTTP; empty for none.")
    store: str = Field("sqlite:safe-psrl-data", description="sqlite:DIRECTORY, postgresql://… or memory:.")
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drain_seconds: float = Field(20.0, ge=0, description="How long calls under way may take to finish at shutdown.")
    reflection: bool = Field(True, description="Let clients ask for the contract.")
    refresh_seconds: float = Field(
        5.0, gt=0, description="How far metrics and WatchAgents may lag behind other replicas on the same database."
    )
    prefer: Literal["throughput", "latency"] = Field(
        "throughput",
        description="On Linux: many calls a second on cores of one's own, or answers in time beside other busy programs.",
    )
    limits: Limits = Limits()
    quotas: Quotas = Quotas()
    security: Security = Security()
    snapshots: SnapshotPolicy = SnapshotPolicy()
    agents: list[DeclaredAgent] = Field(default_factory=list, description="Agents that must exist.")


def load_config(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> ServerConfig:
    """The checked configuration; `flags` that are None were not given. One of a section is `section.setting`."""
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
        raise ConfigError(f"{place}: {first['msg']} (is {first['input']!r})") from None


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration file {file}: {error}") from None


def _put(settings: dict[str, Any], path: list[str], value: Any) -> None:
    for section in path[:-1]:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            raise ConfigError(
                f"{section}: is one value, so {PREFIX}{'__'.join(path).upper()} cannot be set in it (is {settings!r})"
            )
    settings[path[-1]] = value
