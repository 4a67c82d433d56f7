"""A small run that several files certify."""

import pytest

from .cases import invoke


@pytest.fixture(scope="session")
def certifiable_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    arguments = ["--hidden", 8, "--epochs", 2, "--batch-size", 500, "--eps", 0.02, "--temperature", 0.001]
    result = invoke("train", *arguments, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    return out
