"""The model cut over processes that msrun started, and what acts on the layout table."""
