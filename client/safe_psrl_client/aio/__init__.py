"""The asyncio client. `safe_psrl_client.sync` is generated from this package by `make sync-client`: edit only here."""
