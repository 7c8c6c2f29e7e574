"""Attacks of single callers on a server, with a bystander who must not notice."""
