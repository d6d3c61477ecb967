"""What operators run beside a server: checks, loads, bundles, deployments, Ray, first files, a live table."""
