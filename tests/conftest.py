"""One profile of hypothesis for all tests: reproducible, and without deadline, as the first call of a kernel may compile it."""

from hypothesis import settings

settings.register_profile("project", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("project")
