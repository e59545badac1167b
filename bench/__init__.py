"""Workloads, fixtures and measurements. Everything is timed from the outside, as a client of `cluster.Cluster`."""

import cluster  # noqa: F401  # it sets Ray's environment, and has to before any module here imports ray
