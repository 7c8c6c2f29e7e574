"""Reference pages that are read from the server: its settings, its metrics, and the protocol files."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from safe_psrl_client import Client, RemoteAgent, play
from safe_psrl_server.config import PREFIX, DeclaredAgent, ServerConfig
from safe_psrl_server.embedded import EmbeddedServer
from safe_psrl_testbed import scenario_named

CONTRACTS: Final = sorted((Path(__file__).parents[1] / "proto" / "safe_psrl_proto" / "v1").glob("*.proto"))
CONFIGURATION: Final = f"""# Configuration

Every setting of `safe-psrl serve` with its default. A setting comes from the default, then the TOML file of `--config`, then
the environment, then a flag; the last one wins. `safe-psrl serve --print-config` prints the effective settings.

In the environment a setting is `{PREFIX}` and its name in capitals, with two underscores between section and setting:
`{PREFIX}LISTEN`, `{PREFIX}LIMITS__MAX_AGENTS`. In the file it is a key of its section:

```toml
listen = "127.0.0.1:50551"
store = "sqlite:data"

[limits]
max_agents = 500
```

[Security](../security.md#all-limits) has the reasons for the limits.

"""
METRICS: Final = """# Metrics

Every metric that the service exports, with its type, labels and help text, read from a running service.
[Operations](../operations.md#metrics-and-logs) describes the endpoint, and [alerts](../alerts.md) what the alerts do with them.

"""
CONTRACT: Final = """# {name}

{purpose} [The protocol](../../protocol.md) specifies ordering, idempotency and errors.

"""
PURPOSES: Final = {
    "admin": "The calls of operators: create, inspect, pause, export and import agents.",
    "control": "The calls of environments: episodes, actions, transitions.",
    "events": "The events and snapshots that the stores hold, and the export format. Clients do not need it.",
    "model": "Problems, options and policies, shared by the other files.",
}


def configuration() -> str:
    sections = [(name, field) for name, field in ServerConfig.model_fields.items() if _section(field)]
    single = {name: field for name, field in ServerConfig.model_fields.items() if not _section(field)}
    return CONFIGURATION + "".join(
        [
            "## Top level\n\n",
            *_settings(single),
            *(part for name, field in sections for part in _section_part(name, _section(field))),
            *_section_part("agents", DeclaredAgent, heading="`[[agents]]`"),
        ]
    )


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _section_part(name: str, kind: type[BaseModel] | None, heading: str | None = None) -> Iterator[str]:
    if kind is not None:
        yield f"## {heading or f'`[{name}]`'}\n\n{' '.join((kind.__doc__ or '').split())}\n\n"
        yield from _settings(kind.model_fields)


def _settings(fields: dict[str, FieldInfo]) -> Iterator[str]:
    yield "| setting | default | meaning |\n|---|---|---|\n"
    for name, field in fields.items():
        if name == "agents":
            default = "none"
        elif field.is_required():
            default = "required"
        else:
            value = field.get_default(call_default_factory=True)
            default = f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else f"`{value}`"
            default = {"`None`": "none", "`True`": "`true`", "`False`": "`false`", "``": "empty"}.get(default, default)
        yield f"| {breakable(name)} | {default} | {field.description or _choices(field)} |\n"
    yield "\n"


def _choices(field: FieldInfo) -> str:
    values = getattr(field.annotation, "__args__", ())
    return f"One of {', '.join(f'`{value}`' for value in values)}." if values else ""


def metrics() -> str:
    families = sorted(_scraped(), key=lambda family: family.name)
    own = [family for family in families if family.name.startswith("safe_psrl_")]
    return METRICS + "".join(
        [
            "## Agents\n\n",
            *_rows([family for family in own if "agent" in _labels(family)]),
            "## Server\n\n",
            *_rows([family for family in own if "agent" not in _labels(family)]),
            "## gRPC\n\n",
            *_rows([family for family in families if family.name.startswith("grpc_")]),
        ]
    )


def _scraped() -> list[Metric]:
    """The families of a service with an agent that has played an episode."""
    with (
        TemporaryDirectory() as directory,
        EmbeddedServer(f"sqlite:{directory}", metrics="127.0.0.1:0") as server,
        Client(server.target) as client,
    ):
        client.create_agent("buffer", "streaming-buffer")
        play(scenario_named("streaming-buffer").environment(), RemoteAgent(client, "buffer"), episodes=1)
        request = urllib.request.Request(  # of the server above
            f"http://127.0.0.1:{server.metrics_port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        )
        with urllib.request.urlopen(request) as reply:  # noqa: S310
            return list(text_string_to_metric_families(reply.read().decode()))  # type: ignore[no-untyped-call]  # of prometheus_client


def _labels(family: Metric) -> set[str]:
    return {label for sample in family.samples for label in sample.labels} - {"le"}


def _rows(families: list[Metric]) -> Iterator[str]:
    yield "| metric | meaning |\n|---|---|\n"
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        kind = ", ".join([family.type, *(f"`{label}`" for label in sorted(_labels(family)))])
        yield f"| {breakable(name)}<br>{kind} | {family.documentation} |\n"
    yield "\n"


def breakable(name: str) -> str:
    """`name` as code that can break after an underscore, for narrow screens."""
    return f"<code>{name.replace('_', '_<wbr>')}</code>"


def contract(path: Path) -> str:
    introduction = CONTRACT.format(name=path.name, purpose=PURPOSES[path.stem])
    return f"{introduction}```protobuf\n{path.read_text(encoding='utf-8')}```\n"
