"""The store of unpacked archives: entries addressed by content, leases, verification and eviction."""
