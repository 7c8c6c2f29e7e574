"""Who calls, what they may, and how much of it: credentials, roles, quotas and TLS."""
