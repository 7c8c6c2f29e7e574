"""Where `/metrics` leaves the machine: HTTPS with the service's certificate, as the deployment files use it."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from safe_psrl_server.embedded import EmbeddedServer
from tests.deploy.prometheus_tools import CONFIG, DEPLOY, SERVICE, Tools
from tests.deploy.test_compose import SERVICES
from tests.deploy.test_kubernetes import BASE, TLS, documents
from tests.safe_psrl_server.security.conftest import Authority

HEALTH_CHECK: Final = DEPLOY / "docker" / "healthcheck.py"


def test_the_overlay_scrapes_by_https_with_the_certificates_authority() -> None:
    (kustomization,) = documents(TLS / "kustomization.yaml")
    assert "servicemonitor.yaml" in {patch["path"] for patch in kustomization["patches"]}
    (patch,), (base,) = documents(TLS / "servicemonitor.yaml"), documents(BASE / "servicemonitor.yaml")
    (endpoint,) = patch["spec"]["endpoints"]
    assert base["metadata"]["name"] == patch["metadata"]["name"]
    assert base["spec"]["endpoints"][0].items() <= endpoint.items()
    (deployment,) = documents(TLS / "deployment.yaml")
    (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": volume["secret"]["secretName"], "key": "ca.crt"}
    assert "insecureSkipVerify" not in endpoint["tlsConfig"]


def test_what_listens_on_every_interface_in_compose_says_so() -> None:
    command = SERVICES["console"]["command"]
    assert not command[command.index("--listen") + 1].startswith("127.0.0.1:")  # or its port could not be published
    assert "--insecure" in command


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def secured(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.sign("server", "DNS:service.example")
    return {"metrics": "0.0.0.0:0", "security": {"certificate": certificate, "key": key}}


def check_health(*addresses: str) -> int:
    return subprocess.run([sys.executable, HEALTH_CHECK, *addresses], check=False, capture_output=True, timeout=30).returncode


def test_the_image_is_healthy_with_http_and_with_https(authority: Authority) -> None:
    with EmbeddedServer(**secured(authority)) as server:
        assert check_health(f"https://127.0.0.1:{server.metrics_port}/healthz") == 0
        assert check_health(f"http://127.0.0.1:{server.metrics_port}/healthz") == 1
    with EmbeddedServer(metrics="127.0.0.1:0") as server:
        assert check_health(f"http://127.0.0.1:{server.metrics_port}/healthz") == 0


@pytest.mark.slow
def test_prometheus_accepts_the_settings_in_the_comment(tools: Tools, tmp_path: Path) -> None:
    text = CONFIG.read_text(encoding="utf-8")
    for line in ("scheme: https", "tls_config: {ca_file: ca.pem}"):
        assert f"    # {line}\n" in text
        text = text.replace(f"    # {line}\n", f"    {line}\n")
    (scraped,) = yaml.safe_load(text)["scrape_configs"]
    assert scraped["scheme"] == "https"
    assert scraped["static_configs"][0]["targets"] == [SERVICE]
    (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
    for name in ("safe-psrl.rules.yml", "ca.pem"):
        (tmp_path / name).touch()
    subprocess.run([tools.promtool, "check", "config", tmp_path / "prometheus.yml"], check=True, capture_output=True)
