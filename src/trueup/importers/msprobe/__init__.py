"""msprobe dump directories, read as traces and written from traces.

The layout was learned from dumps that msprobe 26.2.0 (PyPI ``mindstudio-probe``) wrote; ``tables`` says how
each part of it becomes ours, ``export`` what has no place in it.
"""
