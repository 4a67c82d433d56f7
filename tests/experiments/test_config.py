"""Flags over file over preset over defaults; and files that say what is wrong with them."""

import math

import pytest

from certibayes.errors import InvalidInput
from certibayes.experiments import ALGORITHMS, TrainSpec
from certibayes.experiments.config import assemble, read_config, write_config
from certibayes.experiments.presets import PRESETS, preset_values


def config(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_flags_win_over_the_file_over_the_preset_over_defaults(tmp_path):
    file = 'preset = "paper-mnist"\nalgorithm = "swag"\neps = 0.2\nlam = 0.5\n[settings]\nrank = 5\nmomentum = 0.5\n'
    spec = assemble({"eps": 0.3, "settings": {"rank": 7}}, read_config(config(tmp_path, file)))
    assert spec.eps == 0.3  # flag
    assert spec.lam == 0.5 and spec.algorithm == "swag"  # file
    assert spec.lr == 0.1 and spec.dataset == "mnist"  # preset
    assert spec.noise_std == TrainSpec().noise_std
    assert spec.settings == {"start": 0.5, "every": 18, "rank": 7, "momentum": 0.5}


def test_nothing_given_is_the_default():
    assert assemble({}) == TrainSpec()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_written_spec_is_read_back_complete(tmp_path, algorithm):
    spec = TrainSpec(algorithm=algorithm, eps=1 / 255, hidden=(3, 4), lr=1e-5)
    write_config(tmp_path / "spec.toml", spec)
    assert assemble({}, read_config(tmp_path / "spec.toml")) == spec.resolved()
    first = (tmp_path / "spec.toml").read_text().splitlines()[0]
    assert first == "# To repeat this run: certibayes train --config spec.toml --out OTHER"


def test_none_is_kept_where_it_is_not_the_default(tmp_path):
    spec = TrainSpec(algorithm="swag", settings={"every": None})
    write_config(tmp_path / "spec.toml", spec)
    assert 'every = "none"' in (tmp_path / "spec.toml").read_text()
    assert assemble({"settings": {"every": None}}, {"algorithm": "swag", "settings": {"every": 3}}) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epoch = 3", "unknown setting 'epoch'; perhaps you mean epochs"),
        ("zzz = 3", r"unknown setting 'zzz'\.$"),
        ('epochs = "ten"', "epochs in .*config.toml must be a whole number"),
        ("eps = [1]", "eps in .*must be a number"),
        ("settings = 3", "settings in .*must be a table"),
        ("preset = 3", "preset in .*must be a name"),
        ("betas = [0.9, 0.99]", r"belongs into the table \[settings\]"),
        ("epochs = 3\neps == 4", "not valid TOML.*line 2"),
    ],
)
def test_a_wrong_file_is_explained_in_a_sentence(tmp_path, text, words):
    with pytest.raises(InvalidInput, match=words):
        read_config(config(tmp_path, text))


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing\.toml"):
        read_config(tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        read_config(tmp_path / "binary.toml")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_specs(name):
    for algorithm in PRESETS[name].algorithms:
        if algorithm in ALGORITHMS:
            spec = assemble({"preset": name, "algorithm": algorithm})
            assert spec.algorithm == algorithm and spec.ramp == 1.0 and spec.lam == 0.25
            # Printed settings do not follow what is a better default here.
            assert spec.temperature == 1.0 and None not in (spec.lr, spec.start_epochs)


def test_presets_hold_the_papers_figures():
    mnist, cifar = (assemble({"preset": f"paper-{name}", "algorithm": "vogn"}) for name in ("mnist", "cifar"))
    assert (mnist.lr, mnist.variance_scale, mnist.epochs, mnist.eps) == (0.35, 10, 20, 0.1)
    assert mnist.make_schedule()(0.5) == mnist.make_schedule()(0.0) == 1.0
    assert (cifar.lr, cifar.variance_scale, cifar.epochs, cifar.eps) == (0.25, 5, 45, 1 / 255)
    assert math.isclose(cifar.make_schedule()(1 / 45), math.exp(-0.025))
    hmc = preset_values("paper-mnist", "hmc")
    assert hmc["epochs"] == 25 and hmc["settings"]["burn_in"] == 3


def test_presets_say_what_they_have():
    with pytest.raises(InvalidInput, match="paper-mnist, paper-cifar"):
        preset_values("paper", "vogn")
    with pytest.raises(InvalidInput, match="'bbb', only for swag, noisy-adam, vogn"):
        preset_values("paper-cifar", "bbb")
