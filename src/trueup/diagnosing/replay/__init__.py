"""Replay: the target run again with the reference's values put in at every matched call, so that each error
shows where it is made."""
