"""Configs of experiments: what differs from default.py, and why."""
