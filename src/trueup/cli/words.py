"""Command lines that the command-line library would not read: several words after one flag, or none."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trueup.cli.command_from import Verb, blocks_of
from trueup.errors import ConfigError
from trueup.types.option import expected


def rewritten(argv: list[str], verb: Verb) -> list[str]:
    """``argv`` with one value a flag, up to the command that follows ``--``."""
    end = argv.index("--") if "--" in argv else len(argv)
    head, tail = argv[:end], argv[end:]
    for block in blocks_of(verb):
        for field in block.fields:
            flags = field.option.flags
            if field.option.several:
                head = with_each_named(head, flags)
            if field.option.read is not None and field.option.metavar.count(" ") == 1:
                head = with_pair_joined(head, flags[0])
            if field.pair:
                require_two_values(head, flags, field.option.metavar)
            if field.option.bare:
                head = with_bare_named(head, flags[0], field.option.bare)
    return [*head, *tail]


def with_verb_first(argv: list[str]) -> list[str]:
    """msprobe's ``-f FRAMEWORK VERB ...`` as ``VERB -f FRAMEWORK ...``.

    Example:
        >>> with_verb_first(["-f", "pytorch", "compare", "-i", "compare.json"])
        ['compare', '-f', 'pytorch', '-i', 'compare.json']
    """
    if len(argv) > 2 and argv[0] in ("-f", "--framework"):
        return [argv[2], *argv[:2], *argv[3:]]
    return argv


_OF_MSPROBE = {"-c": "--no-advisor", "--compare_only": "--no-advisor"}
_OF_MSPROBE |= {"--input_path": "--input", "--output_path": "--output", "-f": "-f", "--fuzzy_match": ""}
_MAPS = ("-dm", "--data_mapping", "-cm", "--cell_mapping", "-am", "--api_mapping", "-lm", "--layer_mapping")


def with_msprobe_s_flags(argv: list[str]) -> list[str]:
    """The flags of ``msprobe compare`` as those of ``trueup compare``; fuzzy matching and a mapping without a
    file are what ``compare`` does by itself.

    Example:
        >>> with_msprobe_s_flags(["compare", "-i", "c.json", "-c", "-f", "-dm", "data.yaml"])
        ['compare', '-i', 'c.json', '--no-advisor', '--map', 'data.yaml']
    """
    if argv[:1] != ["compare"]:
        return argv
    out: list[str] = []
    for at, word in enumerate(argv):
        has_value = at + 1 < len(argv) and not argv[at + 1].startswith("-")
        if word in _MAPS:
            out += ["--map"] if has_value else []
        elif word == "-f" and not has_value:
            continue
        else:
            out += [new for new in (_OF_MSPROBE.get(word, word),) if new or not word]
    return out


def with_each_named(argv: list[str], flags: Collection[str]) -> list[str]:
    """``--reference A B`` as ``--reference A --reference B``.

    Example:
        >>> with_each_named(["curves", "t", "--reference", "a", "b", "-o", "out"], ["--reference"])
        ['curves', 't', '--reference', 'a', '--reference', 'b', '-o', 'out']
    """
    out: list[str] = []
    flag, first = "", False
    for word in argv:
        if flag and not first and not word.startswith("-"):
            out.append(flag)
        out.append(word)
        first = False
        if word.startswith("-") and word != "-":
            flag = word if word in flags else ""
            first = bool(flag)
    return out


def with_pair_joined(argv: list[str], flag: str) -> list[str]:
    """``--scope A B`` as ``--scope A,B``.

    Example:
        >>> with_pair_joined(["capture", "--scope", "a", "b", "-q"], "--scope")
        ['capture', '--scope', 'a,b', '-q']
    """
    if flag not in argv:
        return argv
    at = argv.index(flag)
    pair = argv[at + 1 : at + 3]
    if len(pair) < 2 or "," in pair[0] or pair[1].startswith("-"):
        return argv
    return [*argv[: at + 1], ",".join(pair), *argv[at + 3 :]]


def with_bare_named(argv: list[str], flag: str, value: str) -> list[str]:
    """``--gradients`` without a value as ``--gradients=reference``.

    Example:
        >>> with_bare_named(["replay", "--gradients", "--reference", "run"], "--gradients", "reference")
        ['replay', '--gradients=reference', '--reference', 'run']
    """
    if flag not in argv:
        return argv
    at = argv.index(flag)
    has_value = at + 1 < len(argv) and not argv[at + 1].startswith("-")
    return argv if has_value else [*argv[:at], f"{flag}={value}", *argv[at + 1 :]]


def require_two_values(argv: Sequence[str], flags: Collection[str], metavar: str) -> None:
    """Raise where one value follows a flag that takes two: the next option would become the second.

    Raises:
        ConfigError: naming the flag.
    """
    for at, word in enumerate(argv):
        if word in flags:
            values = argv[at + 1 : at + 3]
            if len(values) < 2 or any(value.startswith("-") for value in values):
                raise expected(word, f"two values, {metavar}", " ".join(values[:1]))


def refuse_empty_words(argv: Sequence[str]) -> None:
    """Raise for an empty word before the captured command: an unset shell variable, not a value.

    Raises:
        ConfigError: there is one; names its option.
    """
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    if "" in words:
        before = words[max(words.index("") - 1, 0)]
        what = before if before.startswith("-") else "an argument"
        raise ConfigError(f"{what} is empty; is it a variable of the shell that is not set?")
