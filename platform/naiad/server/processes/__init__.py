"""A server of several processes: their messages, both ends of their links, replicas, and what all of them share."""
