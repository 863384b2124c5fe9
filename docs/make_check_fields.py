"""Writes docs/check-fields.md: the canonical fields of `trueup check`, and each dialect's words for them."""

from __future__ import annotations

from pathlib import Path

from trueup.checklist.dialect import Dialect, dialects
from trueup.checklist.expression import parsed
from trueup.checklist.fields import fields
from trueup.checklist.rules import rules

PAGE = Path(__file__).parent / "check-fields.md"
SHOWN = ("megatron", "mindformers", "pynative", "hf_model", "hf_trainer", "deepspeed", "torchtitan")
MOST_KEYS = 3
HEAD = """# Fields of `trueup check`

Written by `python docs/make_check_fields.py` from src/trueup/checklist. Every dialect's keys are brought
to these fields and compared there. **error**: another training; warning: may change the numbers; note:
to know. A key with `…` is computed from more than one (the expression is in dialects/*.yaml); *fixed*:
no key changes it, its value is known; *code*: no key changes it, so it is verified in the precision
table of `trueup compare`.
"""


def page() -> str:
    """The whole page."""
    named = {rule.field: rule for file in rules().values() for rule in file if rule.field}
    parts = [HEAD]
    for section in fields().sections.values():
        titles = " | ".join(dialects()[name].title for name in SHOWN)
        parts.append(f"\n## {section.title}\n\n| field | what it is | weight | recommended | {titles} |")
        parts.append("|---|---|---|---|" + "---|" * len(SHOWN))
        for name, spec in section.fields.items():
            rule = named.get(name)
            weight = (
                "" if rule is None else f"**{rule.severity}**" if rule.severity == "error" else rule.severity
            )
            wanted = f"`{rule.recommended}`" if rule is not None and rule.recommended else ""
            words = " | ".join(_words(dialects()[dialect], name) for dialect in SHOWN)
            parts.append(f"| `{name}` | {spec.about} | {weight} | {wanted} | {words} |")
    return "\n".join(parts) + "\n"


def _words(dialect: Dialect, name: str) -> str:
    """The keys of a dialect for a field."""
    if name not in dialect.fields:
        return "*code*" if name in dialect.not_configurable else ""
    expression = parsed(dialect.fields[name])
    if not expression.names:
        return "*fixed*"
    names = [name for name in expression.plain_keys or expression.names if not name.startswith("_")]
    keys = [dialect.places(name)[0] for name in names]
    more = " …" if not expression.plain_keys or len(keys) > MOST_KEYS else ""
    return ", ".join(f"`{key}`" for key in keys[:MOST_KEYS]) + more


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
