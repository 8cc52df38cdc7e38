"""``python -m ftlib.launch`` is ``ftlib run``, where the command is not on the path."""

import sys

from .command import code_of, run

sys.exit(code_of(run, None, "python -m ftlib.launch"))
