"""Specs: checked, complete on request, and read back from JSON of any age."""

import json
import math

import pytest

import certibayes as cb
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
    ("values", "ramp", "lam_ramp"),
    [
        ({"algorithm": "vogn"}, 0.35, 0.15),
        ({"algorithm": "swag"}, 0.35, 0.15),
        ({"algorithm": "swag", "settings": {"start": 0.25}}, 0.175, 0.075),
        ({"algorithm": "sghmc"}, 0.1225, 0.0525),
        ({"algorithm": "sghmc", "settings": {"cycles": 1}}, 0.35, 0.15),
        ({"algorithm": "sghmc", "ramp": 0.3}, 0.3, 0.0525),
        ({"ramp_start": 0.1}, 0.28, 0.12),
        ({"lam_ramp": 0.0}, 0.5, 0.0),
        ({"lam_ramp": 0.2}, 0.3, 0.2),
        ({"ramp": 0.0}, 0.0, 0.0),
        ({"ramp": 0.8}, 0.8, 0.15),
        # Nothing that could rise, and nothing that could be given up.
        ({"radius": "rayleigh"}, 0.5, 0.0),
        ({"dataset": "diabetes"}, 0.5, 0.0),
        ({"dataset": "diabetes", "lam_ramp": 0.1}, 0.4, 0.1),
    ],
    ids=str,
)
def test_the_likelihood_is_reached_when_the_first_iterate_is_collected(values, ramp, lam_ramp):
    spec = TrainSpec(**values).resolved()
    assert (spec.ramp, spec.lam_ramp) == pytest.approx((ramp, lam_ramp))
    assert spec.ramp_shape == ("smooth" if lam_ramp else "linear")
    assert spec.resolved() == spec and spec.make_ramp() == TrainSpec(**values).make_ramp()


@pytest.mark.parametrize(
    ("values", "ramp"),
    [
        ({}, cb.Curriculum()),
        ({"lam_ramp": 0.0}, cb.LinearRamp(0.0, 0.5)),
        ({"lam_ramp": 0.0, "ramp_shape": "smooth"}, cb.SmoothRamp(0.0, 0.5)),
        ({"ramp": 0.0}, None),
        ({"ramp": 0.0, "lam_ramp": 0.25}, cb.Curriculum(None, cb.LinearRamp(0.0, 0.25))),
        ({"ramp": 1.0, "lam_ramp": 0.0}, cb.LinearRamp()),
        ({"ramp": 0.5, "ramp_shape": "linear"}, cb.Curriculum(cb.LinearRamp(0.0, 0.5), cb.LinearRamp(0.5, 0.65))),
        ({"ramp_start": 0.25, "ramp": 0.5}, cb.Curriculum(cb.SmoothRamp(0.25, 0.75), cb.LinearRamp(0.75, 0.9))),
        ({"tightness": 0.5, "balance": 0.25}, cb.Curriculum(tightness=0.5, balance=0.25)),
        ({"multiplier": 2.0, "first_multiplier": 3.0}, cb.Curriculum(multiplier=cb.LinearRamp(0.35, 0.5, 1.5))),
        ({"tightness": 0.5, "lam_ramp": 0.0}, cb.Curriculum(cb.LinearRamp(0.0, 0.5), None, tightness=0.5)),
    ],
    ids=str,
)
def test_ramps_of_radius_lam_and_multiplier(values, ramp):
    assert TrainSpec(**values).make_ramp() == ramp


def test_the_path_is_the_one_of_python():
    digits = data.load("digits")
    assert TrainSpec().make_likelihood(digits) == cb.RobustCategorical(eps=0.1)
    assert TrainSpec(multiplier=2.0).make_radius() == cb.TwoPoint(0.2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ramp": 0.9}, "more than the whole training.*lam_ramp 0 keeps lam constant"),
        ({"ramp": 1.0}, "never be reached"),
        ({"ramp_start": 0.6}, "no time to grow"),
        ({"lam_ramp": 0.5}, "no time to grow.*set ramp as well"),
        ({"lam_ramp": 1.5}, "lam_ramp is a fraction"),
        ({"ramp_start": -0.1}, "ramp_start is a fraction"),
        ({"ramp_start": 0.1, "ramp": 0.0}, "warm-up before the radius grows"),
        ({"radius": "rayleigh", "lam_ramp": 0.15}, "rayleigh has none: leave lam_ramp out"),
        ({"radius": "rayleigh", "first_multiplier": 2.0}, "while lam rises"),
        ({"multiplier": 0.0}, "multiplier is a factor"),
        ({"first_multiplier": math.inf}, "first_multiplier is a factor"),
        ({"tightness": -1.0}, "weight of a regularizer"),
        ({"l1": -1.0}, "l1 is a weight"),
        ({"channels": 8}, "its units are hidden"),
        ({"architecture": "cnn-small", "channels": 8}, "cnn-small has its own"),
        ({"init": "kaiming"}, "init"),
        ({"ramp_shape": "cubic"}, "ramp_shape"),
    ],
    ids=str,
)
def test_paths_and_networks_that_cannot_be(values, message):
    with pytest.raises(InvalidInput, match=message):
        TrainSpec(**values)


def test_deep_networks_come_with_their_normalization_and_initialization():
    digits = data.load("digits")
    spec = TrainSpec(architecture="cnn5", channels=4)
    net = spec.network(digits)
    assert spec.resolved().normalize and spec.resolved().init == "interval"
    mean, std = digits.channel_statistics()
    assert net[0].mean.tolist() == pytest.approx(mean) and net[0].std.tolist() == pytest.approx(std)
    assert net[1].out_channels == 4
    plain = TrainSpec(architecture="cnn5", channels=4, normalize=False, init="torch").network(digits)
    assert len(plain) == len(net) - 1
    assert not TrainSpec().resolved().normalize and TrainSpec().resolved().init == "torch"
    assert len(TrainSpec(normalize=True, hidden=(4,)).network(digits)) == 1 + len(
        TrainSpec(hidden=(4,)).network(digits)
    )


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
