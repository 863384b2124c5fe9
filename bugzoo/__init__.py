"""A collection of training runs with one known fault each, and of changes that are no fault.

``catalogue`` says what an entry is, ``faults`` and ``benign`` hold the entries, ``train`` is the program they
are planted in. A tool that compares runs is measured by what it makes of them.
"""
