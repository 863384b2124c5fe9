"""Writes docs/options.md: every option of the command line, the Python API and the settings files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from trueup.capture.options import CaptureOptions
from trueup.cli.app import USAGE, function_of
from trueup.cli.command_from import blocks_of
from trueup.comparing.options import CompareOptions
from trueup.diagnosing.noise_options import NoiseOptions
from trueup.monitoring.settings import MonitorSettings, RuleSettings
from trueup.types.option import OptionField, option_fields

PAGE = Path(__file__).parent / "options.md"
HEAD = """# Options

Written by `python docs/make_options.py` from the option dataclasses that also define the command line, the
keyword arguments of the Python API, the settings files and the `options` of a manifest. *API*: the field of
the dataclass; *config.json*: the key of msprobe's file that sets it.
"""
CLASSES = {
    CaptureOptions: (
        "`CaptureOptions`",
        "Keyword arguments of `trueup.Tracer`, and `options` in a trace's manifest.json.",
    ),
    CompareOptions: ("`CompareOptions`", "`options` in result.json of `trueup compare`."),
    NoiseOptions: ("`NoiseOptions`", "How often a program is run again for a noise profile."),
    MonitorSettings: (
        "`MonitorSettings`",
        "Keyword arguments of `trueup.Monitor`, and keys of the YAML file of `trueup capture "
        "--monitor-config`.",
    ),
    RuleSettings: ("`RuleSettings`", "Keys of `rules` in the same file, and of `trueup.Monitor(rules=...)`."),
}


def page() -> str:
    """The complete page."""
    parts = [HEAD, "\n## Command line\n"]
    for verb, usage in USAGE.items():
        headline = (inspect.getdoc(function_of(verb)) or "").split("\n\n")[0].replace("\n", " ")
        parts.append(f"\n### trueup {verb}\n\n{headline}\n\nExample: `trueup {verb} {usage}`\n")
        parts.append("\n| option | meaning | default |\n|---|---|---|")
        for block in blocks_of(function_of(verb)):
            parts += [_command_row(field) for field in block.fields if not field.option.hidden]
        parts.append("")
    parts.append("\n## Python API and files\n")
    for cls, (title, use) in CLASSES.items():
        parts.append(
            f"\n### {title}\n\n{use}\n\n| field | meaning | default | option | config.json "
            f"|\n|---|---|---|---|---|"
        )
        parts += [_field_row(field) for field in option_fields(cls)]
        parts.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip("\n") + "\n"


def _command_row(field: OptionField) -> str:
    option = field.option
    names = [option.argument] if option.argument else "/".join(option.flags).split("/")
    shown = ", ".join(f"`{name}`" for name in [*names, option.off] if name)
    meaning = " ".join(_sentences(field, [option.help, option.off and f"`{option.off}`: {option.off_help}"]))
    return _row([shown, meaning, _default(field)])


def _field_row(field: OptionField) -> str:
    option = field.option
    meaning = " ".join(_sentences(field, [option.help]))
    key = f"`{option.config_key}`" if option.config_key else ""
    return _row([f"`{field.name}`", meaning, _default(field), f"`{field.flag}`" if field.flag else "", key])


def _sentences(field: OptionField, first: Iterable[str]) -> Iterator[str]:
    option = field.option
    yield from filter(None, first)
    if field.choices:
        yield f"One of: {', '.join(f'`{word}`' for word in field.choices)}."
    if option.bounds:
        yield f"{option.bounds[0].upper()}{option.bounds[1:]}."
    if option.unit:
        yield f"Unit: {option.unit}."
    if option.no_effect:
        yield f"No effect {option.no_effect}."


def _default(field: OptionField) -> str:
    if field.required:
        return "required"
    return field.default_text() or ("off" if field.default is False else "")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
