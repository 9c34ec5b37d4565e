"""Adapt a training pipeline to failed workers (ReCycle, arXiv 2405.14009): schedules, bounds, an independent checker."""
