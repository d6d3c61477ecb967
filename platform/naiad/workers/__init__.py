"""Guest processes: launch, channel, death."""
