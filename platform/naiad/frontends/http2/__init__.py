"""HTTP/2 for servers: frames, streams, flow control. Knows nothing of what the streams carry."""
