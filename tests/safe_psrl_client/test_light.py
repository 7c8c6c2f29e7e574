"""The client is light: it runs where there is no numpy and no server."""

import subprocess
import sys

SCRIPT = """
import sys
for heavy in ("numpy", "scipy", "numba", "typer", "rich", "pydantic", "safe_psrl", "safe_psrl_server"):
    sys.modules[heavy] = None  # importing it fails
import safe_psrl_client
client = safe_psrl_client.Client("127.0.0.1:1")
client.close()
print(len(safe_psrl_client.__all__))
"""


def test_it_imports_nothing_but_grpc_and_the_contract() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_leaving_with_an_open_stream_does_not_hang(server: str) -> None:
    """A program that forgets to close its client in the middle of a streamed episode still ends."""
    script = f"""
from safe_psrl_client import Client, RemoteAgent
client = Client({server!r})
client.create_agent("forgotten", "factored-toy")
agent = RemoteAgent(client, "forgotten", "stream", abandon_open=True)
print(agent.begin(0))
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() in {"0", "1"}
