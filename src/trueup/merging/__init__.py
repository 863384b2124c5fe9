"""A trace of many ranks as one of whole tensors: parts are put together as the layout says."""
