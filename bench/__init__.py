"""Compares naiad with the real Triton, on one machine in one run; `make bench` writes bench/results.md."""
