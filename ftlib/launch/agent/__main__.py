"""``python -m ftlib.launch.agent``: an agent that speaks with its caller over stdin and stdout."""

import sys

from .agent import main

sys.exit(main())
