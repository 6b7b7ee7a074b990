"""What a run keeps: files, checkpoints, metrics and lock; in buckets, too."""
