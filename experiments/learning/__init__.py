"""Pure functions of arrays: steps, optimizers, operations."""
