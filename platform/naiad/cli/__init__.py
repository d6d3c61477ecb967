"""Arguments, exit codes and what is printed."""
