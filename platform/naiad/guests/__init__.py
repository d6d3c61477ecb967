"""Guest processes: their start, their channel, their end."""
