"""What the service promises, tried under faults: a history of all calls is recorded, and judged by an independent checker."""
