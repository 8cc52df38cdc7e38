"""Histories: drawn, written down, played, judged, and made short."""
