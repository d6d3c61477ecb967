"""`naiad bench`: sends a load to one model and prints its rates and latencies."""
