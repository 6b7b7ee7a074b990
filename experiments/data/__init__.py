"""Data pipeline: data sets, vocabularies, token ids, batches."""
