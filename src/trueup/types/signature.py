"""The signature of a class whose keyword arguments are the fields of an option dataclass."""

from __future__ import annotations

from inspect import Parameter, Signature, signature

from trueup.types.option import option_fields
from trueup.types.plain import plain_from


class KeywordSignature:
    """``__signature__`` of a class whose ``__init__`` takes ``**`` options: each one by its name.

    Notebooks complete keyword arguments from it. It is made when somebody asks; defaults are plain values.
    """

    def __init__(self, options: type) -> None:
        self._options = options

    def __get__(self, instance: object, owner: type) -> Signature:
        own = list(signature(owner.__init__).parameters.values())[1:]  # type: ignore[misc]
        before = [one for one in own if one.kind is not Parameter.VAR_KEYWORD]
        named = {one.name for one in before}
        options = [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.required else plain_from(field.default),
            )
            for field in option_fields(self._options)
            if field.name not in named
        ]
        return Signature([*before, *options])
