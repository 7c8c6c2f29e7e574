"""Which addresses stay on this machine."""

from ipaddress import ip_address


def is_local(address: str) -> bool:
    """Whether HOST:PORT or unix:PATH can be reached from this machine only."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
