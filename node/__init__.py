"""The agent on a training node. It composes detectors, edge compression and local process care; it never imports the service."""
