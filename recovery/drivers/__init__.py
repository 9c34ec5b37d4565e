"""Drivers carry an action out on a kind of cluster."""
