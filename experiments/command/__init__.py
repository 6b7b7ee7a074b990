"""Shared by all commands: errors, log, flags, exit codes, signals."""
