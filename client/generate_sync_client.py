"""Generates `safe_psrl_client.sync` from `safe_psrl_client.aio` by replacing tokens. Run by `make sync-client`."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parent / "safe_psrl_client"
NOTICE: Final = "# Generated from safe_psrl_client/aio by `make sync-client`: do not edit.\n"
RULES: Final = [
    (r"safe_psrl_client\.aio", "safe_psrl_client.sync"),
    (r"\[(\w+) async for \1 in (\w+)\]", r"list(\2)"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\(await (\w+)\)", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[([\w.]+)\]", r"\1"),
    (r"\bAsync(Client|Episode|StepStream|RetryingStream|TrustCalls|Sending|Iterator)\b", r"\1"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\ba(iter|next)\(", r"\1("),
    (r"\bgrpc\.aio\.", "grpc."),
    (r"\b(Admin|Control)ServiceAsyncStub\b", r"\1ServiceStub"),
    (r"\bopen_aio_channel\b", "open_channel"),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\basyncio\.Queue\b", "queue.SimpleQueue"),
    (r"\bimport asyncio\b", "import queue"),
    (r"# ruff: noqa: ASYNC109.*\n", ""),
    (r"The asyncio client belongs to one event loop; the other may be shared", "May be shared"),
]


def main() -> None:
    """Write the generated package into the directory that is given, or into the source tree."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else CLIENT / "sync"
    target.mkdir(parents=True, exist_ok=True)
    for source in (CLIENT / "aio").glob("*.py"):
        text = source.read_text(encoding="utf-8")
        if source.name == "__init__.py":
            text = '"""The synchronous client."""\n'
        for pattern, replacement in RULES:
            text = re.sub(pattern, replacement, text)
        (target / source.name).write_text(NOTICE + text, encoding="utf-8")
    ruff = [str(Path(sys.executable).parent / "ruff")]
    config = ["--quiet", "--config", str(CLIENT.parents[1] / "pyproject.toml"), str(target)]
    subprocess.run([*ruff, "check", "--fix-only", "--select", "F401,I", *config], check=True)  # noqa: S603  # our own command
    subprocess.run([*ruff, "format", *config], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
