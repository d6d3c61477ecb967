"""The host's half of the shared segments: which parts are in use, and until when."""
