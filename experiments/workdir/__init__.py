"""Workdirs, local or in buckets: files, checkpoints, metrics, locks."""
