"""``python -m tests.warm COMMAND ...``: run a command that finds a warm Python in ``WARM_PYTHON``.

Where msprobe's environment is (``TRUEUP_MSPROBE_VENV``), its Python is warm too, in ``WARM_MSPROBE``.
"""

import os
import subprocess
import sys
from contextlib import ExitStack

from tests.warm import COLD, OF_MSPROBE, OF_TRUEUP, TRUEUP, WARM, warm_python

with ExitStack() as closing:
    warm = {WARM: closing.enter_context(warm_python(COLD, *OF_TRUEUP, *TRUEUP))}
    if home := os.environ.get("TRUEUP_MSPROBE_VENV"):
        warm["WARM_MSPROBE"] = closing.enter_context(warm_python(f"{home}/bin/python", *OF_MSPROBE))
    status = subprocess.call(sys.argv[1:], env=os.environ | warm)
sys.exit(status)
