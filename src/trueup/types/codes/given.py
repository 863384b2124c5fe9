"""Text that is not ours: quoted as it was given."""

from trueup.types.codes.base import Code


class GivenCode(Code):
    """Text from outside: a version 1 document, a person's words, another program's message."""

    TEXT = "given.text"
    """place ``text``"""
