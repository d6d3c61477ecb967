"""How naiad scales over its processes: `make bench-scaling` writes a section of docs/benchmarks.md and a picture."""
