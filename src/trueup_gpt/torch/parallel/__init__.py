"""The model cut over processes: the mesh, the layout table, and what acts on it."""
