"""Metrics: Prometheus text, an HTTP endpoint, OpenTelemetry."""
