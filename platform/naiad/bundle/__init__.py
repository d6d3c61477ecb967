"""All that a server needs, in one archive or image: its interpreter and packages, models, backends, environments."""
