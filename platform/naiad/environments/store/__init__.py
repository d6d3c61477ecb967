"""The store: archives unpacked once, addressed by their content, checked and evicted."""
