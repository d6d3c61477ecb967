"""Measures language models: rates and times to the first token, beside the engine itself and the real Triton."""
