"""Model repositories on disk: their files and folders."""
