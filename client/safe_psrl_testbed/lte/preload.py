"""What the processes of simulated networks are forked from has loaded: ns-3, once for all. Not for any other process.

Ctrl-C is for the command: it closes the networks' pipes, and they end.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)

from safe_psrl_testbed.lte.bindings import load_ns3  # noqa: E402

load_ns3()
