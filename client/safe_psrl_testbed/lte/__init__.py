"""A media-streaming LTE cell in ns-3, played by agents of a service and by fixed rules."""
