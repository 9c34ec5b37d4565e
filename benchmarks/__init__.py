"""Measurements, each a module with `run() -> str`: what it measured as Markdown, from one run on this machine."""
