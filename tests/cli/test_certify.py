"""certibayes certify: what it stores, and how it goes on after a stop."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest

import certibayes as cb
from certibayes.certification import BOUNDS, METHODS, shards
from certibayes.cli.certify import HARDER
from certibayes.experiments import tables

from .cases import LIMIT, certified, invoke


@pytest.fixture(scope="module")
def run(certifiable_run):
    return certifiable_run


def test_the_help_names_what_certify_knows():
    page = " ".join(invoke("certify", "--help").output.split())
    assert all(name in page for name in (*BOUNDS, *METHODS, "certibayes check", "--shard", "--intermediates"))


def test_a_directory_holds_points_summary_and_certificate(run, tmp_path):
    result = certified(run, tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == printed
    certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
    x, y = (part[:LIMIT] for part in cb.data.load("digits").test)
    expected = cb.certify(cb.load(run).predictor(3, seed=0), x, y, eps=0.02, domain=(0.0, 1.0))
    assert certificate["certified"] == expected.certified.tolist() and any(certificate["certified"])
    assert certificate["provenance"]["inputs_digest"] == expected.inputs_digest
    assert certificate["provenance"]["seed"] == 0
    with (tmp_path / "out" / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["certified"] == "True" for row in rows] == certificate["certified"]
    assert [int(row["label"]) for row in rows] == certificate["labels"]
    assert [float(row["upper_9"]) for row in rows] == [upper[9] for upper in certificate["upper"]]
    assert printed["certified"] == expected.certified_fraction


def test_a_stopped_command_goes_on(run, tmp_path, monkeypatch):
    calls, real = [], shards.certify

    def stopping(predictor, x, *arguments, **settings):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(len(x))
        return real(predictor, x, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(shards, "certify", stopping)
        stopped = certified(run, tmp_path / "out")
    assert stopped.exit_code == 130 and "the same command goes on" in stopped.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"shards.json", "shard-00000.safetensors", "shard-00001.safetensors"}
    calls.clear()
    monkeypatch.setattr(shards, "certify", stopping)
    assert certified(run, tmp_path / "out", "--json").exit_code == 0
    assert calls == [LIMIT - 50]


@pytest.mark.slow
def test_ctrl_c_keeps_finished_shards(run, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "certibayes", "certify", str(run), "--samples", "35", "--shard", "2"]
    command += ["--method", "theorem1", "--limit", "300"]
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Tests that run in the background of a shell inherit an ignored Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for _ in range(1200):
        if (out / "shard-00002.safetensors").exists():
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert not (out / "summary.json").exists(), "it ended before it could be stopped"
    assert not list(out.glob("*.partial"))
    finished = {path: path.stat().st_mtime_ns for path in out.glob("shard-*")}
    subprocess.run([*command, "--out", str(out), "--json"], check=True, capture_output=True, timeout=300)
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())
    assert len(json.loads((out / "certificate.json").read_text())["certified"]) == 300


def test_a_directory_of_another_certificate_is_refused(run, tmp_path):
    assert certified(run, tmp_path / "out").exit_code == 0
    other = certified(run, tmp_path / "out", "--method", "pairwise")
    assert other.exit_code == 1
    assert "method is 'auto' there and 'pairwise' here" in other.stderr
    into_the_run = certified(run, run)
    assert into_the_run.exit_code == 1 and "other files" in into_the_run.stderr


def test_parquet_needs_a_package(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    result = certified(run, tmp_path / "out", "--format", "parquet")
    assert result.exit_code == 1 and "pyarrow" in result.stderr
    assert not (tmp_path / "out").exists()  # refused before anything was computed
    assert "not 'xlsx'" in certified(run, tmp_path / "out", "--format", "xlsx").stderr


def test_parquet_is_written_by_pyarrow_or_pandas(tmp_path, monkeypatch):
    """With stand-ins, since neither is needed otherwise."""
    arrow, parquet, pandas = (types.ModuleType(name) for name in ("pyarrow", "pyarrow.parquet", "pandas"))
    arrow.table = lambda columns: columns
    parquet.write_table = lambda table, file: file.write(b"arrow " + json.dumps(table).encode())

    class Frame(dict):
        def to_parquet(self, file):
            file.write(b"pandas")

    pandas.DataFrame = Frame
    for module in (arrow, parquet, pandas):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for present, content in (("pyarrow", b'arrow {"a": [0, 1]}'), ("pandas", b"pandas")):
        monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name, present=present: name == present)
        tables.write_table(tmp_path / "t.parquet", {"a": range(2)}, "parquet")
        assert (tmp_path / "t.parquet").read_bytes() == content


def test_where_points_stay_open_it_is_said_what_would_try_harder(run):
    shown = [
        invoke("certify", run, "--eps", eps, "--samples", 2, "--limit", 10, "--method", "theorem1").stdout
        for eps in (0.2, 0.0)
    ]
    assert "stay open; to try harder: --method auto" in shown[0] and "(theorem1, ibp bounds)" in shown[0]
    assert "to try harder" not in shown[1]


def test_one_point_stays_and_several_stay(run):
    """The first point is classified right and not certified at this radius."""
    settings = ("--eps", 0.2, "--samples", 2, "--method", "theorem1", "--limit")
    assert "1 point stays open" in invoke("certify", run, *settings, 1).stdout


def test_rules_are_methods_now(run):
    assert invoke("certify", run, "--rule", "theorem1").exit_code == 2


def test_the_old_way_to_check_names_the_new_one(run, tmp_path):
    result = invoke("certify", run, "--verify", tmp_path / "out")
    assert result.exit_code == 1 and f"certibayes check {run} {tmp_path / 'out'}" in result.stderr


class TestBudget:
    def test_three_answers_add_up(self, run):
        result = invoke(
            "certify", run, "--eps", 0.02, "--samples", 3, "--limit", 20, "--method", "best", "--budget", 2, "--json"
        )
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        assert record["certified"] + record["attacked"] + record["unknown"] == pytest.approx(1.0)

    def test_it_is_printed(self, run):
        result = invoke("certify", run, "--eps", 0.02, "--samples", 3, "--limit", 20, "--method", "best", "--budget", 2)
        assert "unknown" in result.stdout

    def test_a_directory_holds_the_three_answers(self, run, tmp_path):
        result = certified(run, tmp_path / "out", "--method", "best", "--bounds", "crown", "--budget", 2, "--json")
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        assert record["certified"] + record["attacked"] + record["unknown"] == pytest.approx(1.0)
        with (tmp_path / "out" / "points.csv").open() as file:
            rows = list(csv.DictReader(file))
        answers = ("certified", "attacked", "unknown")
        assert all(sum(row[answer] == "True" for answer in answers) == 1 for row in rows)
        certificate = json.loads((tmp_path / "out" / "certificate.json").read_text())
        assert certificate["attacked"] == [row["attacked"] == "True" for row in rows] and any(certificate["attacked"])
        again = certified(run, tmp_path / "out", "--method", "best", "--bounds", "crown", "--budget", 2, "--json")
        assert json.loads(again.stdout) == record
        other = certified(run, tmp_path / "out", "--method", "best", "--bounds", "crown")
        assert other.exit_code == 1 and "budget is 2.0 there and None here" in other.stderr

    def test_a_file_may_hold_the_certificate_alone(self, run, tmp_path):
        file = tmp_path / "c.json"
        result = invoke(
            "certify",
            run,
            "--eps",
            0.02,
            "--samples",
            2,
            "--limit",
            5,
            "--method",
            "best",
            "--budget",
            1,
            "--out",
            file,
        )
        assert result.exit_code == 0, result.output
        assert len(json.loads(file.read_text())["attacked"]) == 5

    def test_other_methods_cannot_use_it(self, run, tmp_path):
        result = certified(run, tmp_path / "out", "--budget", 2)
        assert result.exit_code == 1 and "only the method best" in result.stderr
        assert not (tmp_path / "out").exists()


class TestIntermediates:
    def test_they_are_reported_and_checked(self, run, tmp_path):
        result = certified(run, tmp_path / "out", "--bounds", "crown", "--intermediates", "crown", "--json")
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        assert record["intermediates"] == "crown" and "crown bounds with crown intermediates" in record["statement"]
        assert cb.load_certificate(tmp_path / "out").intermediates == "crown"
        assert invoke("check", run, tmp_path / "out").exit_code == 0
        other = certified(run, tmp_path / "out", "--bounds", "crown")
        assert other.exit_code == 1 and "intermediates is 'crown' there" in other.stderr

    @pytest.mark.parametrize(("value", "words"), [("magic", "must be one of ibp, crown"), ("crown", "linear bounds")])
    @pytest.mark.parametrize("command", ["certify", "radius"])
    def test_wrong_ones_are_explained_in_a_sentence(self, run, command, value, words):
        result = invoke(command, run, "--limit", 5, "--method", "theorem1", "--intermediates", value)
        assert result.exit_code == 1 and words in result.stderr and "Traceback" not in result.output


def test_every_method_knows_what_tries_harder():
    assert set(HARDER) == set(METHODS)


def test_scores_under_attack_are_beside_those_of_the_points(certifiable_run):
    result = invoke("certify", certifiable_run, "--eps", 0.02, "--samples", 3, "--limit", 50, "--json")
    record = json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert record["nll"] <= record["certified_nll"] and record["brier"] <= record["certified_brier"] <= 2.001
    lowest, highest = record["certified_entropy"]
    assert lowest <= record["entropy"] <= highest
    wide = json.loads(invoke("certify", certifiable_run, "--eps", 1.0, "--limit", 5, "--json").stdout)
    assert wide["certified_nll"] == "inf" or wide["certified_nll"] > record["certified_nll"]


def test_workers_divide_the_shards(run, tmp_path):
    arguments = ["certify", str(run), "--samples", "3", "--shard", "5", "--limit", "12"]
    one, two = tmp_path / "one", tmp_path / "two"
    for out, more in ((one, []), (two, ["--workers", "1"])):
        found = invoke(*arguments, "--out", str(out), *more)
        assert found.exit_code == 0, found.output
    for name in ("certificate.json", "points.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert len(list(two.glob("shard-*.safetensors"))) == 3


def test_what_workers_cannot_divide_is_refused(run, tmp_path):
    refused = invoke("certify", str(run), "--samples", "3", "--limit", "12", "--workers", "2")
    assert refused.exit_code == 1 and "--out" in refused.output
    budget = ["--method", "best", "--budget", "5", "--out", str(tmp_path / "out"), "--workers", "1"]
    refused = invoke("certify", str(run), "--samples", "3", "--limit", "12", *budget)
    assert refused.exit_code == 1 and "budget" in refused.output
