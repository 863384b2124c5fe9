"""Imported last where workers are forked from: what is there is never collected, and so stays shared."""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
