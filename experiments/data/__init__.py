"""From texts to batches: where they come from, vocabularies, token ids."""
