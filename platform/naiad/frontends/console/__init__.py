"""The console: a web page at `/ui` that shows models and guests and sends requests to models."""
