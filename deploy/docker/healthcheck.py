"""Exit code 0 if the service in this container is ready, or the page at the address that is given is there."""

import ssl
import sys
import urllib.request
from http.client import HTTPException

DEFAULTS = ("http://127.0.0.1:9464/healthz", "https://127.0.0.1:9464/healthz")  # with a certificate it may be HTTPS


def main() -> int:
    addresses = sys.argv[1:2] or DEFAULTS
    return int(not any(is_there(address) for address in addresses))


def is_there(address: str) -> bool:
    here = ssl.create_default_context()  # in this container: the certificate has other names
    here.check_hostname, here.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(address, timeout=2, context=here) as answer:  # noqa: S310  # the operator's own address
            return int(answer.status) == 200
    except (OSError, HTTPException) as error:
        sys.stderr.write(f"{address}: {error}\n")
        return False


if __name__ == "__main__":
    sys.exit(main())
