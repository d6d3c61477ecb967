"""How naiad scales over its processes: `make bench-scaling` writes a section of bench/results.md and a picture."""
