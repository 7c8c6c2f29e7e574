"""The Kubernetes manifests: schemas of three releases, what a restricted namespace demands, and that the parts fit."""

import copy
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from tests.deploy.commands import effective
from tests.deploy.prometheus_tools import DEPLOY

Json = dict[str, Any]
BASE, TLS = DEPLOY / "kubernetes" / "base", DEPLOY / "kubernetes" / "tls"
RELEASES: Final = ("1.30.0", "1.33.0", "1.37.0")
NO_SCHEMA: Final = {"Kustomization", "ServiceMonitor"}  # of tools beside Kubernetes
PORTS: Final = {"grpc": 50551, "metrics": 9464}


def documents(path: Path) -> list[Json]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def manifests() -> list[Json]:
    return [document for path in sorted(BASE.glob("*.yaml")) for document in documents(path)]


def only(kind: str) -> Json:
    (found,) = [document for document in manifests() if document["kind"] == kind]
    return found


def pod() -> Json:
    spec: Json = only("Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> Json:
    (found,) = pod()["containers"]
    return dict(found)


@pytest.mark.parametrize("release", RELEASES)
def test_every_manifest_is_valid(release: str) -> None:
    checked = [document for document in manifests() if document["kind"] not in NO_SCHEMA]
    for document in checked:
        kubernetes_validate.validate(document, release, strict=True)
    assert {document["kind"] for document in checked} == {
        "Deployment",
        "Namespace",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Secret",
        "Service",
        "ServiceAccount",
    }


def test_the_check_notices_a_misspelt_field() -> None:
    wrong = copy.deepcopy(only("Deployment"))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, RELEASES[-1], strict=True)


def test_kustomize_lists_every_file_but_the_secrets() -> None:
    (kustomization,) = documents(BASE / "kustomization.yaml")
    others = {"kustomization.yaml", "secret.example.yaml"}
    assert set(kustomization["resources"]) == {path.name for path in BASE.glob("*.yaml")} - others
    (generator,) = kustomization["configMapGenerator"]
    assert (BASE / generator["files"][0]).is_file()
    assert generator["name"] in {volume.get("configMap", {}).get("name") for volume in pod()["volumes"]}
    (image,) = kustomization["images"]
    assert image["name"] == container()["image"]
    assert image["newTag"] == version()


def version() -> str:
    found = re.search(r'__version__ = "(.+)"', (DEPLOY.parent / "server/safe_psrl/version.py").read_text(encoding="utf-8"))
    assert found
    return found[1]


def test_pods_are_restricted() -> None:
    """The rules of the Pod Security Standard of that name, and a read-only root."""
    context, own = pod()["securityContext"], container()["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod().keys()
    assert all(volume.keys() & {"configMap", "secret", "emptyDir"} for volume in pod()["volumes"])
    assert pod()["automountServiceAccountToken"] is False
    assert only("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {"cpu", "memory"} <= container()["resources"]["limits"].keys()


def test_the_image_runs_as_the_same_user() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    context = pod()["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in dockerfile


def test_ports_and_labels_fit_each_other() -> None:
    labels = only("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert {port["name"]: port["containerPort"] for port in container()["ports"]} == PORTS
    services = [document for document in manifests() if document["kind"] == "Service"]
    for service in services:
        assert service["spec"]["selector"] == labels
        assert all(PORTS[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    front, replicas = services
    assert front["spec"]["sessionAffinity"] == "ClientIP"
    assert replicas["spec"]["clusterIP"] == "None"
    assert only("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    policy = only("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == PORTS.keys()
    monitor = only("ServiceMonitor")["spec"]
    chosen = monitor["selector"]["matchLabels"].items()
    assert [service for service in services if chosen <= service["metadata"]["labels"].items()] == [replicas]
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in replicas["spec"]["ports"]}
    assert replicas["metadata"]["labels"][monitor["jobLabel"]] == "safe-psrl"


def test_probes_ask_the_health_service() -> None:
    for probe in ("startupProbe", "readinessProbe"):
        assert container()[probe]["grpc"] == {"port": PORTS["grpc"]}


def test_a_rolling_update_starts_a_pod_before_it_stops_one() -> None:
    strategy = only("Deployment")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}


def test_the_deployment_lives_longer_than_the_drain() -> None:
    drain = tomllib.loads((BASE / "config.toml").read_text(encoding="utf-8"))["drain_seconds"]
    pause = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] >= pause + drain + 10


def test_every_secret_that_is_used_is_in_the_example() -> None:
    (secret,) = documents(BASE / "secret.example.yaml")
    keys = {entry["valueFrom"]["secretKeyRef"]["key"] for entry in container()["env"]}
    keys |= {item["key"] for volume in pod()["volumes"] for item in volume.get("secret", {}).get("items", [])}
    assert keys == secret["stringData"].keys()


def test_the_service_accepts_the_configuration() -> None:
    config = effective(BASE / "config.toml")
    assert config["listen"].endswith(f":{PORTS['grpc']}")
    assert config["metrics"].endswith(f":{PORTS['metrics']}")
    assert config["store"].startswith("postgresql://")
    assert ":" not in config["store"].removeprefix("postgresql://").partition("@")[0], "a password in the configuration"
    mounts = [mount["mountPath"] for mount in container()["volumeMounts"]]
    assert any(config["security"]["identities"].startswith(mount) for mount in mounts)
    assert container()["args"][-1] in mounts


def test_tls_is_on_in_its_overlay() -> None:
    (patch,) = documents(TLS / "deployment.yaml")
    (changed,) = patch["spec"]["template"]["spec"]["containers"]
    settings = {entry["name"]: entry["value"] for entry in changed["env"]}
    config = effective(BASE / "config.toml", settings)
    assert config["security"]["insecure"] is False
    (mount,) = changed["volumeMounts"]
    assert {config["security"][name] for name in ("certificate", "key")} == {
        f"{mount['mountPath']}/tls.crt",
        f"{mount['mountPath']}/tls.key",
    }
    for probe in ("startupProbe", "readinessProbe"):
        assert changed[probe] == {"grpc": None, "httpGet": {"path": "/healthz", "port": "metrics", "scheme": "HTTPS"}}


@pytest.mark.parametrize("directory", [BASE, TLS], ids=lambda path: path.name)
def test_kustomize_builds_valid_manifests(directory: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("needs kubectl")
    built = subprocess.run([kubectl, "kustomize", directory], capture_output=True, text=True, check=True, timeout=60)
    made = [document for document in yaml.safe_load_all(built.stdout) if document]
    for document in made:
        if document["kind"] not in NO_SCHEMA:
            kubernetes_validate.validate(document, RELEASES[-1], strict=True)
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "safe-psrl"
    (deployment,) = [document for document in made if document["kind"] == "Deployment"]
    (only_container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert not only_container["image"].endswith(":latest")
    assert ("grpc" in only_container["readinessProbe"]) == (directory == BASE)
    assert ("httpGet" in only_container["readinessProbe"]) == (directory == TLS)
    assert "PGPASSWORD" in {entry["name"] for entry in only_container["env"]}
