"""The command line: thin; it parses, calls and prints."""

from __future__ import annotations

from typing import Annotated

import typer

from certibayes._version import __version__
from certibayes.cli.attack import attack_command
from certibayes.cli.certify import certify_command
from certibayes.cli.check import check_command
from certibayes.cli.data import data_app
from certibayes.cli.demo import demo_command
from certibayes.cli.evaluate import evaluate_command
from certibayes.cli.info import info_command
from certibayes.cli.join import join_command
from certibayes.cli.options import ModulesCommand
from certibayes.cli.page import page_command
from certibayes.cli.radius import radius_command
from certibayes.cli.report import compare_command, report_command
from certibayes.cli.reproduce import reproduce_command
from certibayes.cli.train import train_command
from certibayes.cli.verify import verify_command
from certibayes.cli.zoo import zoo_command


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"certibayes {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="certibayes",
    help="Bayesian neural networks with honest uncertainty and a proof of robustness.\n\n"
    "Start with [bold]certibayes demo[/bold]. Exit codes: 0 done, 1 error, 2 wrong usage, 3 below --at-least or "
    "not upheld by check, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself; its help is above."""


app.command("demo")(demo_command)
app.command("train")(train_command)
app.command("join")(join_command)
app.command("certify", cls=ModulesCommand)(certify_command)
app.command("check", cls=ModulesCommand)(check_command)
app.command("page")(page_command)
app.command("radius", cls=ModulesCommand)(radius_command)
app.command("attack", cls=ModulesCommand)(attack_command)
app.command("evaluate", cls=ModulesCommand)(evaluate_command)
app.command("verify")(verify_command)
app.command("reproduce")(reproduce_command)
app.command("report")(report_command)
app.command("compare")(compare_command)
app.add_typer(data_app, name="data")
app.command("zoo")(zoo_command)
app.command("info")(info_command)


def _paragraphs(text: str) -> str:
    """Join the lines of each paragraph, which the terminal breaks at its own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


for _command in (*app.registered_commands, *data_app.registered_commands):
    if _command.callback is not None and _command.callback.__doc__:
        _command.help = _paragraphs(_command.callback.__doc__)


def main() -> None:
    """Run the command line."""
    app()
