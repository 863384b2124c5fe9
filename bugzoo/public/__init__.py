"""Mistakes that people reported in public, planted into small programs of many model families.

Chosen and written down before any rule was made for them; a quarter was blind until it was opened
(``entries.py``).
"""
