"""From ConfigDicts to frozen dataclasses: tables, checks, older formats."""
