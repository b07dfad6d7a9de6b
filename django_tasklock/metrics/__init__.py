"""Metrics for Prometheus: the counts of all processes, the present state, and the connections of this process."""
