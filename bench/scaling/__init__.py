"""How naiad scales over its frontends: `make bench-scaling` writes a section of docs/benchmarks.md and a picture."""
