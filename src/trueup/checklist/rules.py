"""The rules of the checklist: rules/*.yaml, one file a section."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from trueup.checklist.expression import parsed
from trueup.checklist.fields import fields, yaml_of
from trueup.errors import ConfigError
from trueup.types.finding import Stage

Severity = Literal["error", "warning", "note"]
SECTIONS = ("structure", "moe", "optimizer", "weights", "precision", "parallel", "data", "rl", "environment")


class Demand(BaseModel):
    """One demand: that a field agree, that a condition hold, or a thing only a person can look at.

    Exactly one of ``field``, ``each`` and ``by_hand`` is given; a rule without ``field`` has a ``name``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    sources: tuple[str, ...]
    """rows of the accuracy guide: ``section: key parameter``"""
    severity: Severity = "note"
    """``error``: another training; ``warning``: other rounding, or likely to mislead; ``note``: to know"""
    across: Severity | None = None
    """the severity where the two sides run on different frameworks"""
    why: str = ""
    advice: str = ""
    when: str = ""
    """condition on one side; the rule applies where it holds on either"""
    acts: tuple[Stage, ...] = ()
    """stages of a diagnosis in which a difference shows; none: in none by itself"""
    always: bool = False
    """the section's own ``when`` does not limit this rule"""

    field: str = ""
    compare: str = ""
    """what is compared in place of the field's value: an expression over one side"""
    recommended: str = ""
    """what should hold on a side whose runs are compared"""
    value: str = ""
    """the recommended value: an expression over the side; by default what ``recommended`` compares with"""
    consistent: bool = False
    """whether the guide wants one value on both sides, though two values are the same training"""
    unmet: Severity | None = None
    """the severity where the recommendation is not met (docs/decisions/0028)"""
    grave: str = ""
    """condition on a side that does not meet it, under which ``severity`` decides in place of ``unmet``"""
    reproduce: str = ""
    """the value of a first, reduced reproduction: an expression over the side"""
    verify: str = ""
    """what to look at where a side cannot configure the field"""

    each: str = ""
    """condition every side must meet"""
    says: str = ""
    """the finding where it does not hold"""
    holds: Mapping[str, object] = Field(default_factory=dict)
    breaks: Mapping[str, object] = Field(default_factory=dict)
    """examples, used as tests"""

    by_hand: str = ""
    command: str = ""

    @field_validator("advice", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> str:
        return str(value)

    @model_validator(mode="after")
    def _whole(self) -> Demand:
        kinds = [kind for kind in (self.field, self.each, self.by_hand) if kind]
        if len(kinds) != 1 or not (self.name or self.field):
            raise ValueError("expected one of `field`, `each`, `by_hand`, and a `name` without `field`")
        if self.field and self.field not in fields().all:
            raise ValueError(f"no such canonical field: {self.field}")
        if bool(self.recommended or self.consistent) != (self.unmet is not None):
            raise ValueError("`unmet` goes with `recommended` or `consistent`, and these with it")
        for text in (self.when, self.compare, self.recommended, self.value, self.reproduce, self.each):
            if text:
                parsed(text)
        return self

    @property
    def key(self) -> str:
        """What the rule is called in a report."""
        return self.field or self.name


class RuleFile(BaseModel):
    """One section's rules."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: str = ""
    """condition on one side under which the section's field rules apply"""
    acts: tuple[Stage, ...] = ()
    """where the section's rules act that do not say otherwise"""
    rules: tuple[Demand, ...]


@lru_cache(maxsize=1)
def rules() -> dict[str, tuple[Demand, ...]]:
    """Every rule, by section in the order of a report.

    Raises:
        ConfigError: a file was edited into another form, or a field has no rule.
    """
    found: dict[str, tuple[Demand, ...]] = {}
    for section in SECTIONS:
        source = files("trueup.checklist") / "rules" / f"{section}.yaml"
        try:
            file = RuleFile.model_validate(yaml_of(f"rules/{section}.yaml"))
        except ValidationError as error:
            raise ConfigError(f"{source}: {error}") from error
        found[section] = tuple(_limited(rule, file) for rule in file.rules)
    return found


def _limited(rule: Demand, file: RuleFile) -> Demand:
    """The rule under its section's condition, and with what the section says for all of its rules."""
    changed: dict[str, object] = {} if rule.acts else {"acts": file.acts}
    if file.when and not rule.always and not rule.by_hand:
        changed["when"] = f"({file.when}) and ({rule.when})" if rule.when else file.when
    return rule.model_copy(update=changed)
