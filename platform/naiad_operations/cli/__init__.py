"""Commands that accept the server's flags, and those that click parses."""
