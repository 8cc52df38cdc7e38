"""What has to be installed for a URL: fsspec needs a package for each kind of store."""

from __future__ import annotations

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""The extra of ftlib that has it, by scheme."""


def to_install(url: str) -> str:
    """The command that installs what ``url`` needs, or a text that says it."""
    scheme = url.partition("://")[0]
    extra = _EXTRAS.get(scheme)
    return f"install fsspec, and what it needs for {scheme}://" if extra is None else f"pip install 'ftlib[{extra}]'"
