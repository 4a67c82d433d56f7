"""certibayes verify: the answer on standard output as VNN-COMP reads it, everything else beside it."""

import json

import pytest
import torch

import certibayes as cb
from certibayes.vnnlib import read_vnnlib

from .cases import invoke

pytest.importorskip("onnx", reason='ONNX files need the extra: pip install "certibayes[onnx]"')


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A network whose first output is the sum of its two inputs and whose second is 1."""
    net = torch.nn.Linear(2, 2)
    net.weight.data, net.bias.data = torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([0.0, 1.0])
    folder = tmp_path_factory.mktemp("verify")
    cb.networks.to_onnx(net, folder / "net.onnx")
    declared = "".join(f"(declare-const {name}_{i} Real)\n" for name in "XY" for i in range(2))
    box = "".join(f"(assert (>= X_{i} 0.0))\n(assert (<= X_{i} 0.75))\n" for i in range(2))
    (folder / "sat.vnnlib").write_text(f"{declared}{box}(assert (>= Y_0 Y_1))\n")
    (folder / "unsat.vnnlib").write_text(f"{declared}{box}(assert (or (>= Y_0 1.6) (<= Y_1 0.9)))\n")
    (folder / "bad.vnnlib").write_text(f"{declared}{box}(assert (<= X_0 X_1))\n")
    return folder


def ask(files, specification, *more):
    return invoke("verify", "--onnx", files / "net.onnx", "--vnnlib", files / f"{specification}.vnnlib", *more)


def test_unsat_is_one_word(files):
    result = ask(files, "unsat")
    assert result.exit_code == 0 and result.stdout == "unsat\n"
    assert "proved" in result.stderr


def test_sat_comes_with_a_counterexample(files):
    result = ask(files, "sat", "--budget", 10)
    assert result.exit_code == 0, result.output
    word, *pairs = result.stdout.replace("(", " ").replace(")", " ").split()
    assert word == "sat" and pairs[::2] == ["X_0", "X_1", "Y_0", "Y_1"]
    x0, x1, y0, y1 = map(float, pairs[1::2])
    assert 0 <= x0 <= 0.75 and 0 <= x1 <= 0.75 and y0 >= y1 == 1.0 and abs(x0 + x1 - y0) < 1e-6


def test_unknown_says_why(files):
    result = ask(files, "sat", "--budget", 0)
    assert result.exit_code == 0 and result.stdout == "unknown\n"
    assert "budget is spent" in result.stderr


def test_json_holds_all_of_it(files):
    record = json.loads(ask(files, "sat", "--json").stdout)
    assert record["answer"] == "sat" and len(record["inputs"]) == 2 and record["counterexample"].startswith("((X_0 ")
    assert read_vnnlib(files / "sat.vnnlib").cases[0].is_unsafe(record["outputs"])
    record = json.loads(ask(files, "unsat", "--json").stdout)
    assert (record["answer"], record["excluded"], record["conjunctions"]) == ("unsat", 2, 2)
    assert record["inputs"] is None and record["counterexample"] == ""


def test_errors_are_one_sentence(files):
    result = ask(files, "bad")
    assert result.exit_code == 1 and result.stdout == ""
    assert "bad.vnnlib, line 9" in result.stderr and "inputs must be boxes" in result.stderr
    result = invoke("verify", "--onnx", files / "none.onnx", "--vnnlib", files / "sat.vnnlib")
    assert result.exit_code == 1 and "there is no file" in result.stderr
    assert ask(files, "sat", "--budget", -1).exit_code == 2
