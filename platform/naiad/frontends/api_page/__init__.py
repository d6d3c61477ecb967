"""The page of the API at `/docs`, and the OpenAPI document that it shows, at `/openapi.json`."""
