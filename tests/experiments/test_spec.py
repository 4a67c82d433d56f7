"""Specs: checked, complete on request, and read back from JSON of any age."""

import json

import pytest

from certibayes import data
from certibayes.errors import InvalidInput
from certibayes.experiments import ALGORITHMS, TrainSpec
from certibayes.experiments.spec import hyperparameters
from certibayes.inference import MAP, SWAG, Schedule
from certibayes.inference.temperature import default_temperature


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resolved_spec_is_complete_and_means_the_same(algorithm):
    spec = TrainSpec(algorithm=algorithm)
    complete = spec.resolved()
    assert complete.make_algorithm() == spec.make_algorithm()
    assert complete.make_schedule() == spec.make_schedule()
    assert set(complete.settings) == set(hyperparameters(algorithm))
    names = ("lr", "schedule", "warmup", "ramp", "temperature", "start_epochs")
    assert None not in [getattr(complete, name) for name in names]
    assert complete.resolved() == complete
    assert TrainSpec.from_json(json.loads(json.dumps(complete.to_json()))) == complete


def test_settings_reach_the_algorithm_with_their_types():
    assert TrainSpec(algorithm="map", settings={"betas": [0.5, 0]}).make_algorithm() == MAP(betas=(0.5, 0.0))
    assert TrainSpec(algorithm="swag", lr=1, settings={"every": "none"}).make_algorithm() == SWAG(lr=1.0, every=None)


def test_the_schedule_is_the_algorithms_own_unless_the_spec_says_otherwise():
    assert TrainSpec(algorithm="vogn").make_schedule() == Schedule("cosine", warmup=0.05)
    assert TrainSpec(algorithm="swag").make_schedule() == Schedule("constant")
    assert TrainSpec(algorithm="swag", schedule="cosine", warmup=0.1).make_schedule() == Schedule("cosine", warmup=0.1)
    assert TrainSpec(schedule="exponential", warmup=0, lr_floor=0.5).make_schedule() == Schedule("exponential", 0.5)


def test_specs_are_hashable_and_equal_by_value():
    one, other = (TrainSpec(algorithm="swag", settings={"rank": rank}) for rank in (3, 4))
    assert one != other
    assert {one: 1, other: 2}[TrainSpec(algorithm="swag", settings={"rank": 3})] == 1


def test_older_records_take_defaults():
    old = {"dataset": "digits", "hidden": [8], "algorithm": "vogn", "schedule": "cosine", "warmup": 0.05, "seed": 3}
    spec = TrainSpec.from_json(old)
    assert spec.hidden == (8,) and spec.seed == 3
    assert spec.resolved().start_epochs == 0 and spec.settings == {} and spec.radius == "two-point"
    assert spec.resolved() == TrainSpec(hidden=(8,), seed=3).resolved()


def test_the_temperature_is_chosen_on_held_out_data():
    assert TrainSpec(temperature="validate").resolved().validation == 0.1
    assert TrainSpec(temperature="validate", validation=0.2).resolved().validation == 0.2
    assert TrainSpec().resolved().validation == 0.0


@pytest.mark.parametrize(
    ("values", "temperature"),
    [
        ({"algorithm": "swag"}, 1.0),
        ({"algorithm": "vogn"}, 0.01),
        ({"algorithm": "vogn", "likelihood": "crown-ibp"}, 0.01),
        ({"algorithm": "vogn", "likelihood": "mtl-ibp"}, 0.01),
        ({"algorithm": "vogn", "temperature": 1.0}, 1.0),
        # Nothing is bounded.
        ({"algorithm": "vogn", "likelihood": "standard"}, 1.0),
        ({"algorithm": "vogn", "likelihood": "pgd"}, 1.0),
        ({"algorithm": "vogn", "likelihood": "mtl-ibp", "alpha": 0.0}, 1.0),
        ({"algorithm": "vogn", "eps": 0.0}, 1.0),
        ({"algorithm": "vogn", "lam": 1.0}, 1.0),
        # Regression has no classes to lose.
        ({"algorithm": "vogn", "dataset": "diabetes"}, 1.0),
    ],
    ids=str,
)
def test_the_temperature_is_one_unless_an_algorithm_needs_less_under_bounds(values, temperature):
    spec = TrainSpec(**values)
    assert spec.resolved().temperature == temperature
    if "temperature" not in values:
        likelihood = spec.make_likelihood(data.load(spec.dataset))
        assert default_temperature(spec.make_algorithm(), likelihood.bounded) == temperature


@pytest.mark.parametrize(
    ("values", "ramp"),
    [
        ({"algorithm": "vogn"}, 0.5),
        ({"algorithm": "swag"}, 0.5),
        ({"algorithm": "swag", "settings": {"start": 0.25}}, 0.25),
        ({"algorithm": "sghmc"}, 0.175),
        ({"algorithm": "sghmc", "settings": {"cycles": 1}}, 0.5),
        ({"algorithm": "sghmc", "ramp": 0.3}, 0.3),
    ],
    ids=str,
)
def test_the_radius_has_grown_when_the_first_iterate_is_collected(values, ramp):
    assert TrainSpec(**values).resolved().ramp == pytest.approx(ramp)


def test_chains_start_from_a_trained_network_unless_they_start_from_the_prior():
    assert TrainSpec(algorithm="hmc").resolved().start_epochs == 10
    assert TrainSpec(algorithm="hmc", start_epochs=0).resolved().start_epochs == 0
    assert TrainSpec(algorithm="hmc", settings={"initial": "prior"}).resolved().start_epochs == 0


@pytest.mark.parametrize(
    ("radius", "description"),
    [
        ("two-point", {"name": "TwoPoint", "lam": 0.5}),
        ("rayleigh", {"name": "Rayleigh", "quadrature": 4}),
        ("exponential", {"name": "Exponential", "quadrature": 4}),
    ],
)
def test_the_radius_has_a_distribution(radius, description):
    spec = TrainSpec(radius=radius, lam=0.5, quadrature=4, eps=0.2)
    found = spec.make_likelihood(data.load("digits")).describe()["p_eps"]
    assert found.items() >= {**description, "eta": 0.22000000000000003}.items()


def test_the_radius_grows_only_where_it_is_ramped():
    digits = data.load("digits")
    assert TrainSpec().make_likelihood(digits).describe()["ramp"] is not None
    assert TrainSpec().make_likelihood(digits, ramped=False).describe()["ramp"] is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"algorithm": "map", "settings": {"rank": 3}},
            "map has no hyperparameter 'rank'; it has lr, optimizer, betas",
        ),
        ({"settings": {"lr": 3}}, "setting of its own"),
        ({"settings": {"betas": 3}}, "betas must be 2 numbers"),
        ({"settings": {"betas": (0.9, 2.0)}}, "decays"),
        ({"epochs": "ten"}, "epochs must be a whole number, got 'ten'"),
        ({"epochs": 0}, "epochs"),
        ({"start_epochs": -1}, "start_epochs"),
        ({"hidden": (0,)}, "hidden"),
        ({"temperature": "cold"}, "validate"),
        ({"temperature": 0}, "positive"),
        ({"radius": "magic"}, "two-point, rayleigh, exponential"),
        ({"radius": "rayleigh", "quadrature": 0}, "quadrature"),
        ({"schedule": "magic"}, "cosine"),
        ({"architecture": "magic"}, "cnn-small"),
        ({"lr": -1.0}, "lr"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_trained(values, words):
    with pytest.raises(InvalidInput, match=words):
        TrainSpec(**values)
