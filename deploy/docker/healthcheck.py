"""Exit code 0 if the service in this container is ready, or the page at the address that is given is there."""

import sys
import urllib.request

DEFAULT = "http://127.0.0.1:9464/healthz"


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else DEFAULT
    try:
        with urllib.request.urlopen(address, timeout=4) as answer:  # noqa: S310  # the operator's own address
            return int(answer.status != 200)
    except OSError as error:
        sys.stderr.write(f"{address}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
