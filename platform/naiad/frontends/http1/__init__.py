"""HTTP/1.1 for servers: connections, request heads, responses and server-sent events. Knows no API."""
