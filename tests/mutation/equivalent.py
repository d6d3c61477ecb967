"""Mutants that no test can kill, as they behave as the original does."""

EQUIVALENT: dict[tuple[str, str, str, str], str] = {}
