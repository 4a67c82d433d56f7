"""The paper's figures from cells to table and pictures."""

import csv
import json
import random

import pytest
from typer.testing import CliRunner

from certibayes import data
from certibayes.cli import app
from certibayes.errors import InvalidInput
from certibayes.experiments import _paper_figures, figure_names, load_figure, run_figure
from certibayes.experiments._figure_evaluators import _to_test_on, make_evaluator
from certibayes.experiments._paper_figures import DENSITIES, TRIAL, draw_radii, draw_robustness
from certibayes.experiments.engines import Local
from certibayes.experiments.figure_spec import AXES
from certibayes.experiments.paper import _Clock, _draw, flat, write_results

pytestmark = pytest.mark.usefixtures("few_digits")

SMALL = {
    "robustness": """
rules.ibp = { method = "theorem1", bounds = "ibp" }
rules.lbp = { method = "theorem1", bounds = "crown", limit = 5 }
rules.best = { method = "elided", bounds = "ibp", only = { seed = [9] } }
attack = { steps = 2, restarts = 1 }
""",
    "radius": 'method = "theorem1"\nbounds = "crown"\nlargest = 0.2\ntolerance = 0.05\n',
    "entropy": "attack = { steps = 2, restarts = 1 }\n",
}


def figure_of(kind, folder):
    """Two seeds of a point, by two likelihoods, measured in a hurry."""
    path = folder / "small.toml"
    path.write_text(
        f'posteriors = "fig1"\nkind = "{kind}"\ntitle = "small"\nrecipes = ["now"]\nseeds = [0, 1]\n'
        f'likelihoods = ["standard", "ibp"]\ntwin = false\ndatasets.digits.methods = ["map"]\n'
        f"[evaluation]\nsamples = 1\nlimit = 10\n{SMALL[kind]}"
    )
    return load_figure(str(path))


def run(figure, out, **settings):
    return run_figure(figure, "digits", out, engine=Local(threads=1), quick=True, **settings)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """A directory in which all tests find the same posteriors."""
    return tmp_path_factory.mktemp("paper")


@pytest.mark.parametrize("kind", SMALL)
def test_a_figure_from_cells_to_pictures(kind, cells, tmp_path):
    if kind == "entropy":
        pytest.importorskip("torchmetrics")
    pytest.importorskip("matplotlib")
    seen = []
    result = run(figure_of(kind, tmp_path), cells, command="certibayes reproduce small", on_progress=seen.append)
    assert not result.failures and len(result.rows) == 4
    assert [progress.done for progress in seen] == [1, 2, 3, 4]
    out = cells / "small"
    assert (out / "small.png").read_bytes().startswith(b"\x89PNG") and "<svg" in (out / "small.svg").read_text()
    rows = table(out / "results.csv")
    assert [(row["likelihood"], row["seed"]) for row in rows] == [
        ("standard", "0"), ("standard", "1"), ("ibp", "0"), ("ibp", "1"),
    ]  # fmt: skip
    assert all(row["method"] == "map" and row["recipe"] == "now" and row["temperature"] == "1.0" for row in rows)
    record = json.loads((out / "digits.json").read_text())
    assert record["command"] == "certibayes reproduce small" and record["versions"] and len(record["rows"]) == 4
    if kind == "robustness":
        for row in rows:
            assert 0 <= float(row["ibp"]) <= float(row["pgd"]) <= float(row["accuracy"]) <= 1
            assert row["n"] == "10" and row["n_lbp"] == "5" and row["best"] == ""
    # The second command reads what the first has found, and trains and measures nothing.
    journal = (cells / "cells" / "journal.jsonl").read_text()
    assert run(figure_of(kind, tmp_path), cells).rows == result.rows
    assert (cells / "cells" / "journal.jsonl").read_text() == journal


def test_data_are_read_once_for_all_cells_that_are_measured(cells, tmp_path, monkeypatch):
    """MNIST takes half a second to read, and a grid has a hundred cells."""
    _to_test_on.cache_clear()
    read = []
    load = data.load
    monkeypatch.setattr("certibayes.data.load", lambda name, *more, **named: read.append(name) or load(name, *more))
    figure = figure_of("robustness", tmp_path)
    run(figure, cells)
    read.clear()
    # Trained already, and all measured anew: once to see that the data are there, once to measure.
    assert len(run(figure, cells, limit=7).rows) == 4 and read == ["digits", "digits"]


def test_misclassified_images_have_radius_0(cells, tmp_path):
    rows = run(figure_of("radius", tmp_path), cells).rows
    for row in rows:
        assert sum(radius == 0.0 for radius in row["radii"]) >= round(10 * (1 - row["accuracy"]))
        assert row["radius"] == pytest.approx(sum(row["radii"]) / 10)


def test_a_part_of_a_figure_keeps_the_rest_in_the_table(cells, tmp_path):
    figure = figure_of("robustness", tmp_path)
    everything = run(figure, cells).rows
    seen = []
    part = run(figure, cells, chosen={"likelihood": ["ibp"]}, on_progress=seen.append)
    assert len(seen) == 2 and part.rows == everything


def test_what_is_measured_otherwise_is_measured_again(tmp_path):
    figure = figure_of("robustness", tmp_path)
    keys = {make_evaluator(figure, "digits", limit=limit).key for limit in (None, 5, 4)}
    assert len(keys) == 3
    # Neither the device nor the place of the data changes what a figure is.
    assert make_evaluator(figure, "digits", device="cpu", data_dir="data").key in keys
    (tmp_path / "bad.toml").write_text('posteriors = "fig2"\n[evaluation]\ntolerence = 1\n')
    with pytest.raises(InvalidInput, match=r"tolerence.*tolerance"):
        make_evaluator(load_figure(str(tmp_path / "bad.toml")), "digits")


@pytest.mark.parametrize("name", figure_names())
@pytest.mark.parametrize("quick", [False, True])
def test_every_figure_has_an_evaluation(name, quick):
    figure = load_figure(name)
    for dataset in figure.datasets:
        evaluator = make_evaluator(figure, dataset, quick=quick)
        assert evaluator.eps == (1 / 255 if dataset == "cifar10" else 0.1)
        assert evaluator.samples == (5 if quick else 10 if dataset == "cifar10" else 35)


@pytest.mark.slow
def test_the_regression_has_intervals(tmp_path):
    pytest.importorskip("matplotlib")
    result = run_figure(
        load_figure("regression"), "diabetes", tmp_path, engine=Local(threads=1), quick=True,
        chosen={"method": ["map"]},
    )  # fmt: skip
    assert not result.failures and len(result.rows) == 6
    for row in result.rows:
        found = row["intervals"]
        assert all(a <= b <= c for a, b, c in zip(found["lower"], found["predicted"], found["upper"], strict=True))
    widths = {
        kind: sum(row["width"] for row in result.rows if row["likelihood"] == kind) for kind in ("standard", "ibp")
    }
    assert widths["ibp"] < widths["standard"]


def made_up(name, dataset):
    """Rows of a figure without any training."""
    draw = random.Random(0).random
    rows = []
    for number, (cell, own) in enumerate(load_figure(name).cells(dataset).items()):
        row = {**own.axes, "cell": cell, "source": "", "temperature": 1.0, "n": 10, "samples": 3, "eps": 0.1}
        if number == 4:
            rows.append({**row, "diverged": "too fast"})
            continue
        ibp = 0.5 * draw() if own.likelihood == "ibp" else 0.0
        row |= {"ibp": ibp, "lbp": ibp + 0.1, "pgd": ibp + 0.3, "accuracy": 0.95, "mutual_information": 0.01}
        row |= {"nll": 0.2, "radius": 0.1 * draw(), "likelihood_ratio": draw()}
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    "name", ["fig2", "rayleigh", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fig1", "eta"))]
)
def test_pictures_of_whole_grids(name, tmp_path):
    """A row that diverged is drawn as that, and no row is left out."""
    pytest.importorskip("matplotlib")
    figure = load_figure(name)
    rows = [row for dataset in ("mnist", "cifar10") if dataset in figure.datasets for row in made_up(name, dataset)]
    _draw(figure, rows, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.svg", f"{name}.png"}


@pytest.mark.parametrize("trial", [False, True])
def test_figures_say_what_was_measured(trial, tmp_path, monkeypatch):
    """How many images, samples and seeds; and that a trial run is one."""
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(_paper_figures, "save", lambda figure, *paths: drawn.append(figure))
    rows = [row | {"n": 1000, "n_lbp": 50} for row in made_up("fig2", "cifar10") + made_up("fig2", "mnist")]
    draw_robustness(rows, "robustness", {}, trial=trial)
    draw_radii(rows, "radii", trial=trial)
    for figure in drawn:
        note = figure.legends[0].get_title().get_text().replace("\n", " ")
        assert "1,000 test images, linear bounds on the first 50, 3 weight samples; means of 3 seeds" in note
        assert (TRIAL in note) == trial
    # A line of panels begins with one that shows something, and says what it is about.
    labels = {axes.get_ylabel().partition("\n")[0] for axes in drawn[1].axes if axes.get_visible()} - {""}
    assert labels == {"MNIST", "CIFAR-10, supplement", "CIFAR-10, main", "CIFAR-10, cnn7"}


def test_the_same_figure_is_the_same_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [row for row in made_up("eta", "mnist") if (row["method"], row["recipe"]) == ("swag", "now")]
    paths = [[tmp_path / f"{name}.{form}" for form in ("svg", "png")] for name in "ab"]
    for each in paths:
        draw_robustness(rows, "eta", {}, *each)
    assert [path.read_bytes() for path in paths[0]] == [path.read_bytes() for path in paths[1]]


@pytest.mark.parametrize("family", DENSITIES)
def test_densities_integrate_to_one(family):
    step = 1e-4
    x = [step * (i + 0.5) for i in range(20_000)]
    assert sum(DENSITIES[family](value, 0.1) for value in x) * step == pytest.approx(1.0, abs=1e-3)


def test_data_sets_of_one_figure_share_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr("certibayes.experiments.paper._draw", lambda *arguments, trial: None)
    figure = load_figure("eta")
    for dataset in ("mnist", "digits"):
        write_results(figure, dataset, made_up("eta", dataset), tmp_path, {})
    rows = table(tmp_path / "results.csv")
    assert [row["dataset"] for row in rows] == ["digits"] * 60 + ["mnist"] * 60
    assert set(AXES) < set(rows[0]) and rows[4]["diverged"] == "True" and rows[4]["pgd"] == ""
    assert list(flat(made_up("eta", "mnist")[0], "robustness"))[7:10] == ["accuracy", "pgd", "ibp"]


def test_the_time_left_is_that_of_what_is_left(tmp_path, monkeypatch):
    cells = load_figure("fig1").cells("digits", quick=True, method=["map"], likelihood=["ibp"], recipe=["now"])
    clock = _Clock(cells, tmp_path, make_evaluator(load_figure("fig1"), "digits"))
    monkeypatch.setattr("certibayes.experiments.paper.time.monotonic", lambda: clock.began + 10.0)
    first, second, third = cells
    assert clock.after(first) == pytest.approx(20.0)
    assert clock.after(second) == pytest.approx(5.0) and clock.after(third) == 0.0


def test_the_command_names_cells_that_fail_and_exits_with_1(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def fail(self, posterior, spec):
        if spec.seed == 1:
            raise InvalidInput("no such luck")
        return {"accuracy": 1.0, "pgd": 0.5, "ibp": 0.25, "n": 10}

    monkeypatch.setattr("certibayes.experiments._figure_evaluators.FigureEvaluator.evaluate", fail)
    figure_of("robustness", tmp_path)
    arguments = ["reproduce", str(tmp_path / "small.toml"), "--dataset", "digits", "--quick", "--workers", "1"]
    result = CliRunner().invoke(app, [*arguments, "--likelihood", "ibp", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "failed: digits/map-ibp-now-s1" in result.stdout and "25.0" in result.stdout
    assert "2/2" in result.stderr
    answer = CliRunner().invoke(app, [*arguments, "--likelihood", "ibp", "--out", str(tmp_path / "out"), "--json"])
    found = json.loads(answer.stdout)
    assert len(found["rows"]) == 1 and "no such luck" in found["failed"]["digits/map-ibp-now-s1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig9"], "fig1"),
        (["fig1", "--dataset", "svhn"], "fig1 is about"),
        (["fig1", "--dataset", "digits", "--engine", "slurm"], "local, ray"),
        (["inference", "--engine", "ray"], "belong to figures"),
        (["fig1", "--dataset", "digits", "--seed", "3"], "belong to studies"),
        (["fig1", "--dataset", "digits", "--channels", "8"], "belong to studies"),
        (["deep", "--task", "digits", "--channels", "8"], "belongs to deep --part paths"),
    ],
)
def test_what_cannot_be_is_said(arguments, words, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 1 and words in result.stderr


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def stop(self, posterior, spec):
        if spec.seed == 1:
            raise KeyboardInterrupt
        return {"accuracy": 1.0, "pgd": 0.5, "ibp": 0.25, "n": 10}

    monkeypatch.setattr("certibayes.experiments._figure_evaluators.FigureEvaluator.evaluate", stop)
    figure_of("robustness", tmp_path)
    arguments = ["reproduce", str(tmp_path / "small.toml"), "--dataset", "digits", "--quick", "--workers", "1"]
    result = CliRunner().invoke(app, [*arguments, "--likelihood", "ibp", "--out", str(tmp_path / "out")])
    assert result.exit_code == 130 and "same command again" in " ".join(result.stderr.split())
    assert len(table(tmp_path / "out" / "small" / "results.csv")) == 1
