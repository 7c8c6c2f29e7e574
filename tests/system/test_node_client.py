"""The example of a client in another language, which has the .proto files and no code of ours."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import safe_psrl_proto
from safe_psrl import SafePsrl, SafePsrlOptions, Transition, act
from safe_psrl_proto.v1 import admin_pb2
from safe_psrl_server.agents.definition import definition_of
from safe_psrl_server.agents.messages import unpack
from tests.system.server_process import NewServer

pytestmark = pytest.mark.slow

NODE = Path(__file__).parents[2] / "examples" / "node-client"
PROTO = Path(next(iter(safe_psrl_proto.__path__))).parent


@pytest.fixture(scope="module")
def node_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script with its packages, in the versions of the lock file."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    directory = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "play.js"):
        shutil.copy(NODE / name, directory)
    run("npm", "ci", "--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", cwd=directory)
    return directory


def run(program: str, *arguments: str, cwd: Path) -> str:
    command = [shutil.which(program) or program, *arguments]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_twenty_episodes_from_node(started_server: NewServer, node_directory: Path) -> None:
    """Half of them with the two plain calls, half with every call keyed and repeated."""
    server = started_server()
    told = json.loads(run("node", "play.js", server.target, str(PROTO), cwd=node_directory))
    episodes = told["episodes"]
    assert len(episodes) == 20

    agent = server.admin.GetAgent(admin_pb2.GetAgentRequest(agent="node", with_spec=True))
    spec = definition_of(agent.spec).spec
    counts = np.zeros(spec.dirichlet_prior.shape, np.int64)
    learner = SafePsrl(spec, SafePsrlOptions("certified"), 7)
    memory = learner.initial_state()
    for episode in episodes:
        memory, plan = learner.start_episode(memory)
        assert [action for _, action, _ in episode] == [act(plan, step, state) for step, (state, _, _) in enumerate(episode)]
        for step, (state, action, next_state) in enumerate(episode):
            counts[0, state, action, next_state] += 1
            memory = learner.observe(memory, Transition(step, state, action, next_state))
    posterior = server.admin.GetPosterior(admin_pb2.GetPosteriorRequest(agent="node"))
    assert np.array_equal(unpack(posterior.transition_counts), counts)
    assert (agent.status.completed_episodes, agent.status.transitions) == (20, 200)
    assert told["dual_variable"] == agent.status.constraints[0].dual_variable == memory.dual_variables[0]


def test_the_lock_file_names_no_registry() -> None:
    """So that it works with whichever one is configured."""
    lock = json.loads((NODE / "package-lock.json").read_text(encoding="utf-8"))
    assert [name for name, package in lock["packages"].items() if "resolved" in package] == []
