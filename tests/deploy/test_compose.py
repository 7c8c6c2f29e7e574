"""The compose file: what it mounts exists, images are pinned, ports are on the loopback interface, and its parts fit."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.commands import effective
from tests.deploy.prometheus_tools import CONFIG, DEPLOY, SERVICE, Tools
from tests.deploy.test_kubernetes import version

COMPOSE: Final = DEPLOY / "compose"
DOCUMENT: Final = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Final[dict[str, Any]] = DOCUMENT["services"]
EVERY: Final = pytest.mark.parametrize("name", SERVICES)


def test_all_parts_are_there() -> None:
    assert SERVICES.keys() == {"service", "console", "postgres", "prometheus", "grafana"}


@EVERY
def test_images_are_pinned(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].partition(":")
    assert re.search(r"\d+\.\d+", tag), f"{image} is not pinned"
    if "build" in SERVICES[name]:
        assert tag == version()


@EVERY
def test_ports_are_on_the_loopback_interface(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    assert name != "postgres" or "ports" not in SERVICES[name]


@EVERY
def test_what_is_mounted_exists(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source, _, target = mount.partition(":")
        if source.startswith("."):
            assert (COMPOSE / source).exists(), source
            assert target.endswith(":ro")
        else:
            assert source in DOCUMENT["volumes"]


@EVERY
def test_containers_are_closed(name: str) -> None:
    service = SERVICES[name]
    assert "no-new-privileges:true" in service["security_opt"]
    assert "privileged" not in service
    if name != "postgres":  # gives its volume to its user before it becomes that user
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


@EVERY
def test_passwords_come_from_the_environment(name: str) -> None:
    example = (COMPOSE / "example.env").read_text(encoding="utf-8")
    for variable, value in SERVICES[name].get("environment", {}).items():
        if "PASSWORD" in variable:
            found = re.fullmatch(r"\$\{(\w+):\?.+\}", value)
            assert found, f"{variable} has a default"
            assert f"\n{found[1]}=\n" in example


@EVERY
def test_networks_and_dependencies_exist(name: str) -> None:
    service = SERVICES[name]
    assert set(service["networks"]) <= DOCUMENT["networks"].keys()
    for other, condition in service.get("depends_on", {}).items():
        assert condition != {"condition": "service_healthy"} or "healthcheck" in SERVICES[other]
    if "ports" in service:
        assert "outside" in service["networks"], "no port is published from an internal network"


def test_the_image_is_built_from_the_dockerfile() -> None:
    build = SERVICES["service"]["build"]
    context = COMPOSE / build["context"]
    assert context.resolve() == DEPLOY.parent
    assert (context / build["dockerfile"]).is_file()


def test_the_service_accepts_its_configuration() -> None:
    config = effective(COMPOSE / "config.toml")
    postgres = SERVICES["postgres"]["environment"]
    assert config["store"] == f"postgresql://{postgres['POSTGRES_USER']}@postgres/{postgres['POSTGRES_DB']}"
    assert f"127.0.0.1:50551:{config['listen'].rpartition(':')[2]}" in SERVICES["service"]["ports"]
    assert SERVICES["console"]["command"][2] == f"service:{config['listen'].rpartition(':')[2]}"
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == [f"service:{config['metrics'].rpartition(':')[2]}"]


def test_prometheus_and_grafana_differ_from_the_shipped_ones_in_the_address_only() -> None:
    def content(path: Path) -> Any:
        return yaml.safe_load(path.read_text(encoding="utf-8"))

    ours, shipped = content(COMPOSE / "prometheus.yml"), yaml.safe_load(CONFIG.read_text().replace(SERVICE, "service:9464"))
    assert ours == shipped
    source = DEPLOY / "grafana" / "provisioning" / "datasources" / "safe-psrl.yml"
    moved = yaml.safe_load(source.read_text(encoding="utf-8").replace("127.0.0.1:9090", "prometheus:9090"))
    assert content(COMPOSE / "grafana-datasource.yml") == moved
    (provider,) = content(DEPLOY / "grafana" / "provisioning" / "dashboards" / "safe-psrl.yml")["providers"]
    assert f"../grafana/dashboards:{provider['options']['path']}:ro" in SERVICES["grafana"]["volumes"]


def test_prometheus_accepts_its_configuration(tools: Tools, tmp_path: Path) -> None:
    """In the places where the compose file mounts it."""
    for mount in SERVICES["prometheus"]["volumes"]:
        source, target, *_ = mount.split(":")
        if source.startswith("."):
            (tmp_path / Path(target).name).write_bytes((COMPOSE / source).read_bytes())
    subprocess.run([tools.promtool, "check", "config", tmp_path / "prometheus.yml"], check=True, capture_output=True)
