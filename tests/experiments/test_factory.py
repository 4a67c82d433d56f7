"""Networks of one's own by name: found, made the same every time, and every mistake explained."""

import sys

import pytest
import torch

from certibayes import data
from certibayes.errors import InvalidInput
from certibayes.experiments import TrainSpec
from certibayes.experiments.factory import network_from

SOURCE = """
from torch import nn

import helper_of_factories

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, helper_of_factories.UNITS), nn.ReLU(), nn.Linear(4, 10))

def make():
    return Net()

class Family:
    @staticmethod
    def small():
        return nn.Linear(3, 2)

def needs(width):
    return nn.Linear(width, 2)

def breaks():
    raise KeyError("weights")

def wrong():
    return {"layers": 3}

net = nn.Linear(2, 2)
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package and a file in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "helper_of_factories.py").write_text("UNITS = 4\n")
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "nets.py").write_text(SOURCE)
    (tmp_path / "own_package" / "broken.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "own_package" / "wrong.py").write_text("1 / 0\n")
    (tmp_path / "models.py").write_text(SOURCE)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("own_package", "helper_of_factories"))]:
        del sys.modules[name]


@pytest.mark.parametrize("place", ["own_package.nets", "models.py", "./models.py", "models"])
@pytest.mark.parametrize("name", ["make", "Net"])
def test_factories_are_found(folder, place, name):
    before = list(sys.path)
    net = network_from(f"{place}:{name}", 0)
    assert type(net).__name__ == "Net" and sys.path == before
    sys.modules.pop("models", None)


def test_neighbors_of_a_file_elsewhere_are_found(folder, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert type(network_from(f"{folder}/models.py:make", 0)).__name__ == "Net"


def test_a_factory_inside_something(folder):
    assert network_from("models.py:Family.small", 0).in_features == 3


def test_the_seed_decides(folder):
    state = torch.get_rng_state()
    first, again, other = (network_from("models.py:make", seed)[1].weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "text, message",
    [
        ("no_such_package.nets:make", r"no module 'no_such_package'.*no_such_package\.py:factory"),
        ("own_package.missing:make", r"no module 'own_package\.missing'.*own_package/missing\.py:factory"),
        ("own_package.broken:make", r"own_package\.broken cannot be imported: ModuleNotFoundError: .*no_such_package"),
        ("own_package.wrong:make", "own_package.wrong cannot be imported: ZeroDivisionError"),
        ("own_package/wrong.py:make", r"own_package/wrong\.py cannot be imported: ZeroDivisionError"),
        ("missing.py:make", r"no file missing\.py"),
        ("models.py:mkae", r"no 'mkae' in models\.py; perhaps you mean make"),
        ("own_package.nets:Net.large", r"no 'Net\.large' in own_package\.nets"),
        ("models.py:number", "is a int, where a function is needed"),
        ("models.py:net", "is a module; name a function"),
        ("models.py:needs", "called without arguments and failed: TypeError.*fills them in"),
        ("models.py:breaks", "failed: KeyError: 'weights'"),
        ("models.py:wrong", r"returned a dict, where an nn\.Module is needed"),
        (":make", r"no architecture; write package\.module:factory or"),
        ("models.py:", "no architecture"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(folder, text, message):
    with pytest.raises(InvalidInput, match=message):
        network_from(text, 0)


class TestSpec:
    def test_it_makes_the_network(self, folder):
        spec = TrainSpec(architecture="models.py:make", seed=3)
        assert torch.equal(spec.network(data.load("digits"))[1].weight, network_from("models.py:make", 3)[1].weight)
        assert TrainSpec.from_json(spec.resolved().to_json()).architecture == "models.py:make"

    def test_what_is_known_here_says_how_to_name_others(self):
        with pytest.raises(InvalidInput, match=r"no architecture 'mpl'; perhaps you mean mlp.*package\.module:factory"):
            TrainSpec(architecture="mpl")

    @pytest.mark.parametrize("setting", [{"normalize": True}, {"init": "interval"}])
    def test_settings_of_known_architectures(self, folder, setting):
        with pytest.raises(InvalidInput, match=r"by itself.*Leave them out"):
            TrainSpec(architecture="models.py:make", **setting).network(data.load("digits"))

    def test_channels(self):
        with pytest.raises(InvalidInput, match="channels is for"):
            TrainSpec(architecture="models.py:make", channels=4)
