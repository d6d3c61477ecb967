"""`naiad tune`: finds instances, batch sizes and delays of a model under a load, and writes its configuration."""
