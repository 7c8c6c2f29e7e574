"""The gRPC services: decode, call, encode."""
