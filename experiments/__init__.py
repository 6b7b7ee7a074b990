"""Commands, a file each, and below them rooms, from the lowest to the highest.

command, workdir, data, learning, settings, training, sweeps, inspection,
benchmarks: each imports only from those before it, and none imports a command.
"""
