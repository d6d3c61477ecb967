"""The command line of the server: flags, and the options that they set."""
