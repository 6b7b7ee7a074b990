"""What every command shares: errors, log, flags, exit codes, signals."""
