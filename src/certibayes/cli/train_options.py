"""The flags of ``certibayes train``: one for each field of a spec and for each hyperparameter of each algorithm.

They are made from the dataclasses that declare them, so that a new hyperparameter is a flag at once.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, Union

import typer
from rich.markup import escape

from certibayes.experiments.settings import NONE, Setting, as_text, metavar, settings_of
from certibayes.experiments.spec import ALGORITHMS, CHOICES, TrainSpec, hyperparameters

PANELS = {"dataset": "Data and network", "likelihood": "Likelihood and prior", "algorithm": "Inference"}
"""Headings of the help page, by the field each begins with."""


def spec_options() -> list[inspect.Parameter]:
    """Make a parameter for each field of a spec; one that was not given is None."""
    made, panel = [], ""
    for setting in settings_of(TrainSpec).values():
        panel = PANELS.get(setting.name, panel)
        help_text = _sentence(setting.help) + _listed(CHOICES.get(setting.name, ()))
        made.append(_option(setting, help_text, "" if setting.default is None else as_text(setting.default), panel))
    return made


def hyperparameter_options() -> list[inspect.Parameter]:
    """Make a parameter for each hyperparameter of any algorithm; those of the same name share one.

    Each is in a panel that names the algorithms that have it.
    """
    owners: dict[str, dict[str, Setting]] = {}
    for algorithm in ALGORITHMS:
        for name, setting in hyperparameters(algorithm).items():
            owners.setdefault(name, {})[algorithm] = setting
    made = []
    for having in owners.values():
        texts = {algorithm: setting.help for algorithm, setting in having.items()}
        if len(set(texts.values())) > 1:
            # What the hyperparameter is, for each; the explanation after that is in the documentation.
            texts = {algorithm: text.partition(";")[0].partition(".")[0] for algorithm, text in texts.items()}
        defaults = {algorithm: as_text(setting.default) for algorithm, setting in having.items()}
        # The flag takes what any of them takes; the spec knows what its own algorithm does.
        kind: Any = Union.__getitem__(tuple(setting.kind for setting in having.values()))
        shared = dataclasses.replace(next(iter(having.values())), kind=kind)
        made.append(_option(shared, _sentence(_by_owner(texts)), _by_owner(defaults), f"For {', '.join(having)}"))
    # Panels appear in the order of their first flag: what many algorithms share comes first.
    return sorted(made, key=lambda parameter: -len(owners[parameter.name]))


def with_options(parameters: list[inspect.Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command that takes ``**given`` be called with these parameters beside its own."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore[attr-defined]
        return command

    return add


def _option(setting: Setting, help_text: str, default: str, panel: str) -> inspect.Parameter:
    flag = "--" + setting.name.replace("_", "-")
    # Typer would show the default as None: that is how we know that a flag was not given.
    shown = escape(help_text) + (f" [dim]{escape(f'[default: {default}]')}[/dim]" if default else "")
    if setting.kind in (bool, bool | None):
        switch = typer.Option(f"{flag}/--no-{flag[2:]}", help=shown, show_default=False, rich_help_panel=panel)
        annotation: Any = Annotated[bool | None, switch]
    else:

        def read(text: str) -> Any:
            try:
                value = setting.read(text)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
            # None itself says that the flag was not given.
            return NONE if value is None else value

        annotation = Annotated[
            Any,
            typer.Option(
                flag, parser=read, metavar=f"<{metavar(setting.kind)}>", help=shown, show_default=False,
                rich_help_panel=panel,
            ),
        ]  # fmt: skip
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _sentence(text: str) -> str:
    # A Greek letter is a symbol, which a capital would make another.
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return first + text[1:].rstrip(".") + "."


def _listed(names: Collection[str]) -> str:
    return f" One of {', '.join(names)}." if names else ""


def _by_owner(texts: dict[str, str]) -> str:
    """Write a text that all algorithms share once, and others with the algorithms that they belong to."""
    distinct = dict.fromkeys(texts.values())
    if len(distinct) == 1:
        return next(iter(distinct))
    having = {text: ", ".join(name for name in texts if texts[name] == text) for text in distinct}
    return "; ".join(f"{text} ({names})" for text, names in having.items())
