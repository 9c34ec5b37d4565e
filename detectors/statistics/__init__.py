"""Trouble that shows in numbers: pure functions over a window, each of which returns its judgement with the reason."""
