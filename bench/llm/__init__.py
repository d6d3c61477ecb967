"""Compares language models on naiad, on Triton and in the engine itself: token rates, times to the first token."""
