"""What all tests share."""

from hypothesis import settings

# Deterministic, and fair on a busy machine.
settings.register_profile("pitstop", deadline=None, derandomize=True)
settings.load_profile("pitstop")
