"""The model cut over processes, as plain data: the mesh, the layout table, parts of parameters, schedules."""
