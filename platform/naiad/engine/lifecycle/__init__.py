"""States of models and instances, and the decisions that follow from them: tables and pure functions."""
