"""The service with a store that replies before it commits, for the tests that must notice it.

python careless_server.py late|never [noted] serve …: `late` commits when the next group comes, `never` never does; `noted`
lets the store's second memory of its commits go on as usual.
"""

import sys
from typing import Any

from safe_psrl_cli.main import main
from safe_psrl_server.store.sqlite import SqliteStore
from safe_psrl_server.store.witness import CommitWitness


class CarelessConnection:
    """A connection whose COMMIT is only said."""

    def __init__(self, connection: Any, late: bool) -> None:
        self._connection = connection
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        if statement == "COMMIT":
            return None
        if statement.startswith("BEGIN") and self._connection.in_transaction:
            if not self._late:
                return None
            self._connection.execute("COMMIT")
        return self._connection.execute(statement, *values)


def make_careless(late: bool, noted: bool) -> None:
    write = SqliteStore._write

    def carelessly(store: Any) -> None:
        store._writing = CarelessConnection(store._writing, late)
        write(store)

    SqliteStore._write = carelessly  # type: ignore[method-assign]
    if not noted:
        CommitWitness.note = lambda *_: None  # type: ignore[method-assign]


if __name__ == "__main__":
    command = sys.argv.index("serve")
    make_careless("late" in sys.argv[1:command], "noted" in sys.argv[1:command])
    sys.argv = ["safe-psrl", *sys.argv[command:]]
    main()
