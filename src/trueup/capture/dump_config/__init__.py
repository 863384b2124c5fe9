"""The configuration of MindSpore's own dump: written from a request, checked before it is used."""
