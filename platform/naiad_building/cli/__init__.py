"""The commands `naiad env`, `naiad add` and `naiad lock`."""
