"""Which branches of ``if`` and ``case`` a shell takes, as far as the script itself decides it."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field

from trueup.checklist.readers.shell_conditions import holds
from trueup.checklist.readers.shell_words import ShellStatement, Variables, expanded_text, open_in


@dataclass(slots=True)
class _Choice:
    """One open ``if`` or ``case``. True, False, or None where only the shell can tell."""

    here: bool | None = False
    """whether the branch that is open now is taken"""
    done: bool | None = False
    """whether it, or one before it, is"""
    subject: str | None = None
    """what a ``case`` looks at; None where that is not known"""

    def next(self, test: bool | None) -> None:
        """The branch after the one that is open, with its test."""
        self.here = False if self.done or test is False else test if self.done is False else None
        self.done = self.done or (None if self.done is None or test is None else test)


@dataclass(slots=True)
class Branches:
    """The branches a script is in."""

    undecided: list[int] = field(default_factory=list)
    """lines of tests only the shell can decide"""
    _ifs: list[_Choice] = field(default_factory=list)
    _cases: list[int] = field(default_factory=list)
    """which of the open choices are ``case``"""

    @property
    def taken(self) -> bool | None:
        """Whether what stands here runs; None where only the shell can tell."""
        states = [choice.here for choice in self._ifs]
        return False if False in states else None if None in states else True

    def follow(self, statement: ShellStatement, variables: Variables) -> ShellStatement | None:
        """The statement beside a word of the branching, or itself; None where nothing is left of it."""
        word = statement.words[0][0]
        if word in ("if", "elif", "else", "fi"):
            self._if(word, statement, variables)
            return None
        if word == "case" and len(statement.words) > 1:
            return self._case(statement, variables)
        if word == "esac" and self._cases:
            del self._ifs[self._cases.pop() :]
            return None
        if self._cases and word.endswith(")") and "(" not in word:
            return self._pattern(word[:-1], statement, variables)
        return statement

    def _if(self, word: str, statement: ShellStatement, variables: Variables) -> None:
        if word == "fi":
            del self._ifs[-1:]
            return
        if word == "if":
            reached = self.taken
            self._ifs.append(_Choice(done=reached is False))
        if not self._ifs or self._ifs[-1].done is True:
            self._close()
            return
        test = True if word == "else" else holds(statement, variables)
        if test is None:
            self.undecided.append(statement.line)
        self._ifs[-1].next(test)

    def _close(self) -> None:
        """A branch after one that was taken."""
        if self._ifs:
            self._ifs[-1].here = False

    def _case(self, statement: ShellStatement, variables: Variables) -> ShellStatement | None:
        subject = expanded_text(statement.words[1][0], variables.aside())
        known = not open_in(subject)
        if not known and self.taken is not False:
            self.undecided.append(statement.line)
        self._cases.append(len(self._ifs))
        self._ifs.append(_Choice(done=self.taken is False, subject=subject if known else None))
        return self._beside(statement, 3, variables)  # the first pattern may stand on the same line

    def _pattern(
        self, pattern: str, statement: ShellStatement, variables: Variables
    ) -> ShellStatement | None:
        choice = self._ifs[self._cases[-1]]
        plain = expanded_text(pattern, variables)
        choice.next(None if choice.subject is None else fnmatch.fnmatchcase(choice.subject, plain))
        return self._beside(statement, 1, variables)

    def _beside(self, statement: ShellStatement, first: int, variables: Variables) -> ShellStatement | None:
        words = statement.words[first:]
        return self.follow(ShellStatement(words), variables) if words else None
