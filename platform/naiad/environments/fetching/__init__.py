"""Remote archives: downloading, resuming, and records of their digests."""
