"""From ConfigDicts to frozen dataclasses: choices, checks."""
