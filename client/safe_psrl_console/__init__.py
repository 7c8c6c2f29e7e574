"""The operator's web page: a client of the service, in its own process."""
