"""Model repositories on disk: what lies where."""
