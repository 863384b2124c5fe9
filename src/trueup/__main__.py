"""``python -m trueup`` is ``trueup``."""

from trueup.cli import main

main()
