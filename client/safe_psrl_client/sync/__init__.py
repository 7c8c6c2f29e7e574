# Generated from safe_psrl_client/aio by `make sync-client`: do not edit.
"""The synchronous client."""
