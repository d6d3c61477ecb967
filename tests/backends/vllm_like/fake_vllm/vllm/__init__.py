"""Stands in for vLLM: as much of its interface as our adapter uses, with an engine that repeats the prompt's words."""
