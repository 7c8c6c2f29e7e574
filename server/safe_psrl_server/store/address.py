"""How the address of a store is shown."""


def shown_address(address: str) -> str:
    """Of a database where it is and what it is called, without name and password; of the others all."""
    if address.startswith(("sqlite:", "memory:")):
        return address
    scheme, slashes, rest = address.partition("://")
    return f"{scheme}://{rest.split('?', maxsplit=1)[0].rpartition('@')[2]}" if slashes else "PostgreSQL"
