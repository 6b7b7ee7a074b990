"""Commands, one file each, and their packages, from lowest to highest.

command, workdir, data, learning, settings, training, sweeps, inspection,
benchmarks: each imports only from those before it, and none imports a command.
"""
