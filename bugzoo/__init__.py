"""A collection of training runs with one known fault each, and of changes that are no fault.

``planted`` holds the entries, one module a part of training with what is expected of a diagnosis in the YAML
beside it; ``bases.yaml`` the programs they are planted in, ``trainer`` their training loop, ``train`` the
command line. ``zoo`` runs them all through trueup's public commands and writes ``SCOREBOARD.md``.

``public`` holds mistakes that people reported, in programs of many model families, with a runner and a judge
of their own; a part of it was blind.

``catalogue``, ``faults`` and ``benign`` are the short list of the benchmarks, in a larger GPT of their own.
"""
