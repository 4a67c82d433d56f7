"""S-expressions with the lines they stand on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from certibayes.errors import InvalidInput

_TOKENS = re.compile(r"(?P<comment>;[^\n]*)|(?P<newline>\n)|(?P<token>[()]|[^\s();]+)|(?P<space>\s)")

DEPTH = 100
"""How deep expressions may be nested."""


@dataclass(frozen=True)
class Word:
    """A name, keyword or number."""

    text: str
    line: int

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Form:
    """A list of words and forms, in parentheses."""

    parts: tuple[Word | Form, ...]
    line: int

    @property
    def head(self) -> str:
        """The word it begins with, or nothing."""
        first = self.parts[0] if self.parts else None
        return first.text if isinstance(first, Word) else ""

    @property
    def rest(self) -> tuple[Word | Form, ...]:
        """All but the first."""
        return self.parts[1:]

    def __str__(self) -> str:
        return f"({' '.join(map(str, self.parts))})"


def refused(where: Word | Form, why: str, source: str) -> InvalidInput:
    """Return the error that says what on which line cannot be read."""
    text = str(where)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return InvalidInput(f"{source}, line {where.line}: {why}, in {shown}.")


def read_forms(text: str, source: str) -> list[Form]:
    """Read all expressions of a text.

    Args:
        text: of a file.
        source: its name, for errors.
    """
    line = 1
    # What is open, the outermost first; the lowest holds the finished expressions.
    stack: list[tuple[int, list[Word | Form]]] = [(0, [])]
    for match in _TOKENS.finditer(text):
        if match.lastgroup == "newline":
            line += 1
        token = match["token"]
        if token is None:
            continue
        if token == "(":
            if len(stack) > DEPTH:
                raise InvalidInput(f"{source}, line {line}: expressions are nested more than {DEPTH} deep.")
            stack.append((line, []))
        elif token == ")":
            if len(stack) == 1:
                raise InvalidInput(f"{source}, line {line}: a closing parenthesis has no opening one.")
            began, parts = stack.pop()
            stack[-1][1].append(Form(tuple(parts), began))
        elif len(stack) == 1:
            raise refused(Word(token, line), "a file is made of expressions in parentheses", source)
        else:
            stack[-1][1].append(Word(token, line))
    if len(stack) > 1:
        raise InvalidInput(f"{source}, line {stack[-1][0]}: an opening parenthesis is not closed.")
    return [form for form in stack[0][1] if isinstance(form, Form)]
