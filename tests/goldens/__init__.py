"""Golden answers: what trueup concludes from inputs that never change (``tests/fixtures/goldens``).

``python -m tests.goldens`` prints what is not as it was; ``python -m tests.goldens --write`` takes today's
answers for right, and what has changed is a diff of the JSON files beside this one.
"""
