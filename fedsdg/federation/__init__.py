"""Objectives, local training of a cohort, cohorts, the round loop, evaluation and checkpoints."""
