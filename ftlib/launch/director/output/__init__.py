"""What becomes of workers' lines at the caller (``desk``, ``pump``), and the live view below them (``panel``)."""
