"""Where a guest's interpreter and packages come from; the store of unpacked archives."""
