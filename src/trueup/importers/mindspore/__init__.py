"""Dumps that MindSpore writes by itself (``MINDSPORE_DUMP_CONFIG``), read as traces.

The layouts were learned from dumps of MindSpore 2.10 on CPU and from MindSpore's public documentation of its
dump (r2.4 to r2.10) and its public ``dump_data.proto``; ``folders`` lists them, ``tables`` says what becomes
of what.
"""
