"""The one byte stream between a caller and an agent: what is said (``messages``), in which order (``channel``), until when
(``deadline``). Both ends use the same code; neither ever unpickles anything here.
"""
