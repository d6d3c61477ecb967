"""Model repositories as OCI artifacts: their layers, pulled into the store and served from it."""
