"""Many runs from one command: what to train, how, and what came of it."""
