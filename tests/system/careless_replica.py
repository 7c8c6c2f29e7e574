"""The service with an append that does not look at the version, for the test that must notice it.

python careless_replica.py serve …
"""

from safe_psrl_cli.main import main
from safe_psrl_server.store import postgres_commit

CHECK = " AND stream.version = wanted.seen_version AND stream.link = wanted.seen_link"
ANSWER = "RETURNING agent\n"
OVERWRITE = """ON CONFLICT (agent, version) DO UPDATE SET payload = excluded.payload, link = excluded.link
    RETURNING safe_psrl_events.agent
"""

if __name__ == "__main__":
    careful = postgres_commit.APPEND
    assert CHECK in careful
    before, answer, after = careful.rpartition(ANSWER)
    assert answer
    careless = (before + OVERWRITE + after).replace(CHECK, "")
    postgres_commit.APPEND = careless  # type: ignore[misc]
    main()
