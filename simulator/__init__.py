"""Replays failures of a cluster against ways of recovering from them: what each would have kept of the cluster's worth."""
