"""Work on requests that may take long: in slices on the event loop, or in a separate process."""
