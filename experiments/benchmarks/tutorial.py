"""Hyperparameters of the tutorial's classifier."""

NUM_HEADS, NUM_CLASSES = 8, 2
DROPOUT_RATE, LEARNING_RATE = 0.1, 1e-3
