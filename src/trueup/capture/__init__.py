"""Capture of a run, framework-neutral: what to capture, the session that does it, and the three ways in."""
