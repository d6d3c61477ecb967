"""Which state a model or instance is in and what may follow: tables and pure functions."""
