"""Traces of a worker for OpenTelemetry: records made into spans, the thread that does it, and what carries them away."""
