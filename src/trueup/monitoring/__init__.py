"""Watches a run while it trains: numbers of every step, alarms, evidence."""
