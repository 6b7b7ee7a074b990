"""The example that reads an export, in a process without this project."""
