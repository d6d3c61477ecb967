"""Prometheus text, collected at scrape time."""
