"""``python -m tests.warm COMMAND ...``: run a command that finds a warm Python in ``WARM_PYTHON``."""

import os
import subprocess
import sys

from tests.warm import WARM, warm_python

with warm_python() as command:
    sys.exit(subprocess.call(sys.argv[1:], env=os.environ | {WARM: command}))
