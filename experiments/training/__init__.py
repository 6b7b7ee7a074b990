"""Runs: what they are built from, the loop, and how they are evaluated."""
