"""What holds for all tests."""

import signal

from hypothesis import settings

# Reproducible, and without deadline, as the first call of a kernel may compile it.
settings.register_profile("project", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("project")

# Whoever starts the tests in the background may have Ctrl-C ignored, and programs that are started here would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
