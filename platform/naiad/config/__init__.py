"""config.pbtxt and command-line options, parsed once into values."""
