"""Values that cross every layer: datatypes, requests, responses, metadata."""
