"""The files of the paper's figures: which cells they have, with which settings, and which are trained together."""

import math

import pytest

from certibayes.errors import InvalidInput
from certibayes.experiments import deep_tasks, honest_study, inference_study
from certibayes.experiments.figure_spec import TWIN, figure_names, load_figure, merged, read_toml
from certibayes.experiments.presets import PRESETS
from certibayes.experiments.spec import ALGORITHMS
from certibayes.likelihoods import RobustCategorical

PAPER = ("swag", "noisy-adam", "vogn", "bbb", "hmc")
ALL = [(name, dataset) for name in figure_names() for dataset in load_figure(name).datasets]


def cell(figure, dataset, name, **settings):
    return load_figure(figure).cells(dataset, **settings)[f"{dataset}/{name}"]


def test_every_figure_of_paper_and_supplement_has_a_file():
    assert set(figure_names()) == {"fig1", "fig2", "fig3", "eta", "lambda", "rayleigh", "exponential", "regression"}


@pytest.mark.parametrize(("name", "dataset"), ALL)
@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_cells_of_a_group_differ_in_what_the_file_says(name, dataset, quick):
    figure = load_figure(name)
    cells = figure.cells(dataset, quick=quick)
    groups = {}
    for found in cells.values():
        assert found.source, "settings come from somewhere"
        assert found.spec.seed == found.seed and found.spec.dataset == dataset
        assert found.spec.algorithm == found.method and found.spec.likelihood == found.likelihood
        groups.setdefault(found.group, []).append(found)
    for members in groups.values():
        for axis in ("method", "likelihood", "recipe", "network"):
            assert len({getattr(member, axis) for member in members}) == 1
        if members[0].spec.start_epochs:
            assert len(members) == 1
    if quick:
        assert all(found.spec.epochs <= 4 or dataset == "diabetes" for found in cells.values())


def test_figure_1_has_the_papers_grid():
    for dataset, methods, networks in (
        ("mnist", PAPER, 1),
        ("fashion-mnist", PAPER, 1),
        ("cifar10", ("swag", "noisy-adam", "vogn"), 2),
    ):
        cells = [c for c in load_figure("fig1").cells(dataset).values() if c.method not in (TWIN, "snapshot")]
        assert {c.method for c in cells} == set(methods)
        assert {c.likelihood for c in cells} == {"standard", "pgd", "ibp"}
        assert {c.recipe for c in cells} == {"paper", "now"} and {c.seed for c in cells} == {0, 1, 2}
        assert len(cells) == len(methods) * networks * 3 * 2 * 3
        assert {c.spec.eps for c in cells} == {1 / 255 if dataset == "cifar10" else 0.1}
        assert {c.spec.temperature for c in cells} == {1.0}


def test_figures_2_and_3_take_the_posteriors_of_figure_1():
    for dataset in ("mnist", "cifar10"):
        first = load_figure("fig1").cells(dataset)
        for name in ("fig2", "fig3"):
            cells = load_figure(name).cells(dataset)
            assert cells.items() <= first.items()
    # None of what Figure 1 measures is measured again.
    assert "rules" not in load_figure("fig2").evaluation_of("mnist", quick=True)
    assert load_figure("fig2").evaluation_of("mnist")["limit"] == 100


def test_a_group_is_the_same_in_all_figures():
    groups = {}
    for name, dataset in ALL:
        members = {}
        for key, found in load_figure(name).cells(dataset).items():
            members.setdefault(found.group, set()).add(key)
        for group, keys in members.items():
            assert groups.setdefault(group, keys) == keys, group


@pytest.mark.parametrize("method", PAPER)
def test_as_the_paper_does_it_has_the_settings_of_the_study_of_inference(method):
    expected = inference_study.study_spec(method, "ibp", 1.0)
    assert cell("fig1", "mnist", f"{method}-ibp-paper-s0").spec.resolved() == expected.resolved()
    kinks = inference_study.METHODS[method].get("settings", {}).get("kinks")
    assert kinks in (None, False)


@pytest.mark.parametrize(
    ("method", "recipe"),
    [("noisy-adam", "noisy-adam, both, by weight"), ("vogn", "vogn, both"), ("bbb", "bbb, learned prior")],
)
def test_what_we_know_now_has_the_settings_of_the_study_of_honest_posteriors(method, recipe):
    spec = cell("fig1", "mnist", f"{method}-ibp-now-s0").spec
    honest = honest_study.RECIPES[recipe]
    assert spec.make_algorithm() == honest.algorithm and spec.epochs == honest.epochs
    prior = spec.make_prior()
    assert (prior.every, prior.variance_scale) == (honest.prior.every, honest.prior.variance_scale)
    assert prior.groups == "weights"
    assert spec.make_ramp() == RobustCategorical(eps=0.1).ramp
    assert spec.make_radius() == RobustCategorical(eps=0.1).p_eps


def test_swag_has_the_settings_of_the_study_of_deep_networks():
    spec, task = cell("fig1", "mnist", "swag-ibp-now-s0").spec, deep_tasks.TASKS["mnist-paper"].spec()
    for name in ("lr", "epochs", "schedule", "lam", "multiplier"):
        assert getattr(spec, name) == getattr(task, name)
    assert spec.settings["every"] == task.settings["every"]
    spec, task = cell("fig1", "cifar10", "swag-ibp-now-supplement-s0").spec, deep_tasks.TASKS["cifar10-paper"].spec()
    for name in (
        "architecture",
        "lr",
        "schedule",
        "lam",
        "multiplier",
        "eps",
        "epochs",
        "augment",
        "variance_scale",
        "settings",
    ):
        assert getattr(spec, name) == getattr(task, name)
    snapshot, task = cell("fig1", "cifar10", "snapshot-ibp-now-cnn7-s0").spec, deep_tasks.TASKS["cifar10-1"].spec()
    left_out = {"start_lr"}
    here, there = snapshot.resolved().to_json(), task.resolved().to_json()
    assert {name: here[name] for name in here if name not in left_out} == {
        name: there[name] for name in there if name not in left_out
    }


def test_cifar_has_the_decay_of_the_supplement():
    spec = cell("fig1", "cifar10", "noisy-adam-ibp-paper-supplement-s0").spec
    preset = PRESETS["paper-cifar"].algorithms["noisy-adam"]
    assert (spec.lr, spec.variance_scale, spec.schedule) == (preset["lr"], preset["variance_scale"], preset["schedule"])
    assert spec.lr_floor == preset["lr_floor"] == math.exp(-0.025 * 45)
    assert spec.augment == "flip,crop:4" and spec.epochs * 50_000 == 45 * 100_000


def test_studies_vary_what_they_are_about():
    etas = {c.variation: c.spec.make_radius().eta for c in load_figure("eta").cells("mnist").values()}
    assert etas == pytest.approx({"eta 0.05": 0.05, "eta 0.1": 0.1, "eta 0.15": 0.15})
    assert {c.spec.lam for c in load_figure("lambda").cells("mnist").values()} == {0.75, 0.5, 0.25}
    for name in ("rayleigh", "exponential"):
        figure = load_figure(name)
        radii = {c.spec.make_radius() for c in figure.cells("mnist").values()}
        assert {type(radius).__name__.lower() for radius in radii} == {name}
        assert figure.density["family"] == name
        assert all(c.spec.make_radius().eta == pytest.approx(0.1) for c in figure.cells("mnist").values())
    for name in ("eta", "lambda", "rayleigh", "exponential"):
        cells = load_figure(name).cells("mnist").values()
        assert {c.likelihood for c in cells} == {"pgd", "ibp"} and {c.method for c in cells} == set(PAPER)


def test_cells_can_be_chosen():
    figure = load_figure("fig1")
    assert set(figure.cells("mnist", method=["vogn"], recipe=["now"], likelihood=["ibp"])) == {
        f"mnist/vogn-ibp-now-s{seed}" for seed in range(3)
    }
    main = figure.cells("cifar10", method=["swag"], network=["main"])
    assert {(cell.network, cell.spec.architecture) for cell in main.values()} == {("main", "paper-cifar")}
    # A recipe that is there to be asked for.
    validated = figure.cells("mnist", recipe=["validated"])
    assert {c.spec.temperature for c in validated.values()} == {"validate"}
    with pytest.raises(InvalidInput, match=r"vgon.*vogn"):
        figure.cells("mnist", method=["vgon"])
    with pytest.raises(InvalidInput, match="fig1 is about digits, mnist"):
        figure.cells("svhn")


def test_recipes_are_for_known_algorithms():
    for recipe in read_toml("recipes")["recipe"].values():
        for method in recipe.get("methods", {}):
            assert method in ALGORITHMS


def test_tables_are_merged_all_the_way_down():
    assert merged({"a": {"b": 1, "c": [1]}}, {"a": {"c": [2]}, "d": 3}) == {"a": {"b": 1, "c": [2]}, "d": 3}


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('posteriors = "fig1"\nseeds = [7]\nlikelihoods = ["ibp"]\nkind = "robustness"\n')
    figure = load_figure(str(path))
    assert figure.name == "mine" and {c.seed for c in figure.cells("digits").values()} == {7}
    path.write_text('posteriors = "fig1"\nsedes = [7]\n')
    with pytest.raises(InvalidInput, match=r"sedes.*seeds"):
        load_figure(str(path))
    with pytest.raises(InvalidInput, match="fig9"):
        load_figure("fig9")
