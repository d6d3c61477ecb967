"""What everything may use: errors, the log, the packages beside `naiad`, memory, garbage collection."""
