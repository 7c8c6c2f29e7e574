"""The contract: protocol buffers of the service and of the stored events, with generated code."""
