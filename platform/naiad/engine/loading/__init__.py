"""From a model directory to a version that serves requests, and back: load, reload, unload, poll."""
