"""What the embedded model reaches on this machine, against everything one would pick: `python -m benchmarks.local`."""
