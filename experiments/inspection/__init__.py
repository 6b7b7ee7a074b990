"""Inspection of models: attention heads, position encodings, HTML pages."""
