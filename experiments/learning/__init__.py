"""Pure functions of arrays: steps, optimizers, ensembles, operations."""
