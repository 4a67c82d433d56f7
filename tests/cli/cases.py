"""How tests call the command line, and a small certificate."""

from typer.testing import CliRunner

from certibayes.cli import app

LIMIT = 60


def invoke(*arguments):
    # Wide, so that no word is broken. (Not by TERMINAL_WIDTH, which typer reads once and for all tests after.)
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})


def certified(run, out, *more):
    return invoke("certify", run, "--eps", 0.02, "--samples", 3, "--limit", LIMIT, "--shard", 25, "--out", out, *more)
