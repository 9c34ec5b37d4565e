"""Decoupled evaluation of model checkpoints: loading, generation and verification planned apart (papers.md 3.5, Acme)."""
