"""A server of several processes: their messages, both ends of their links, branches, and what all of them share."""
