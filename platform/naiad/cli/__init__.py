"""The command line: arguments, exit codes and output of `tritonserver` and `naiad`."""
