"""The page: one self-contained file that opens anywhere, and works from a disk without a network."""

from trueup.reporting.html.page import write_html

__all__ = ["write_html"]
