"""Numbers of the tutorial's classifier that all who build it share."""

NUM_HEADS, NUM_CLASSES = 8, 2
DROPOUT_RATE, LEARNING_RATE = 0.1, 1e-3
