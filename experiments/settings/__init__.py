"""From ConfigDicts to frozen dataclasses: registries, checks."""
