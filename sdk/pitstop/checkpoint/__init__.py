"""Checkpoints that cost a training loop one copy: staged in host memory, made durable and replicated from outside it."""
