"""``python -m ftlib.launch.agent``: an agent that speaks with its caller over stdin and stdout."""

import os

from .agent import main

os._exit(main())  # nothing is left to be cleaned up, and an interpreter takes a while to do that
