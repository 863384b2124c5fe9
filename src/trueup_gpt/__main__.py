"""``python -m trueup_gpt`` is ``trueup train``; ``torchrun -m trueup_gpt`` starts many of it."""

from trueup_gpt.cli import main

main()
