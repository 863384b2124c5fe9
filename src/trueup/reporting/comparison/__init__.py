"""Reports of a comparison: its result, the document that all four renderers draw, and the page of advice."""
