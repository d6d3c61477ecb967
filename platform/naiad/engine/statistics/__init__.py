"""What the engine counts: requests, durations, responses, and metrics of the models' own."""
