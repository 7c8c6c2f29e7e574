"""What the service promises, tried under faults: a recorded history of all calls, judged afterwards by an independent checker."""
