"""A load generator that is not written in Python: `h2load` of nghttp2, which sends a prepared gRPC message."""

import re
import struct
import subprocess
import tempfile
from pathlib import Path


def native_rate(target: str, method: str, request: bytes, in_flight: int, calls: int) -> float:
    """Calls a second. Raises RuntimeError unless every call ended with the status OK of HTTP."""
    with tempfile.TemporaryDirectory() as directory:
        body = Path(directory) / "message"
        body.write_bytes(struct.pack(">BI", 0, len(request)) + request)  # gRPC's frame: not compressed, length
        command = ["h2load", "-n", str(calls), "-c", "1", "-m", str(in_flight), "-t", "1", "-d", str(body)]
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        done = subprocess.run(  # noqa: S603
            [*command, *headers, f"http://{target}{method}"], check=True, capture_output=True, text=True, timeout=300
        )
    succeeded = re.search(r"(\d+) succeeded", done.stdout)
    rate = re.search(r"finished in [^,]+, ([\d.]+) req/s", done.stdout)
    if succeeded is None or rate is None or int(succeeded[1]) != calls:
        raise RuntimeError(f"h2load had calls that failed: {done.stdout[-500:]}")
    return float(rate[1])
