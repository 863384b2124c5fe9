"""Curves of training runs: read from any log, put side by side, judged by the migration standard and
beyond it."""
