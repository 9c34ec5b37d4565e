"""Readers: bytes that a run left behind become lines with rank, node and time."""
