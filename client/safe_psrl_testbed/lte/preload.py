"""Loads ns-3 in the fork server from which the processes of simulated networks are forked. Not imported by any other process.

Ctrl-C is handled by the command, which closes the networks' pipes so that they end.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)

from safe_psrl_testbed.lte.bindings import load_ns3  # noqa: E402

load_ns3()
