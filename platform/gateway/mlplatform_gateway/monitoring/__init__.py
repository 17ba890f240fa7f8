"""Metrics for Prometheus, outages, disks, and what Ray's dashboard asks the monitoring."""
