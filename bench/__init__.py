"""Workloads, fixtures and measurements. Everything is timed from the outside, as a client of `cluster.Cluster`."""
