"""Sweeps: planning trials, engines to run them, comparison of settings."""
