"""What an export is read with, in a process without this project."""
