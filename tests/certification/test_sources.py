"""Points from loaders and tables, and radii by name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import certibayes as cb
from certibayes.certification.shards import certify_in_shards
from certibayes.data import Split
from certibayes.errors import InvalidInput


class Frame:
    """What matters of a table of pandas."""

    def __init__(self, values, columns):
        self.values, self.columns, self.dtypes = values, columns, [values.dtype] * len(columns)

    def to_numpy(self, dtype=None):
        return self.values.astype(dtype)


@pytest.fixture
def case():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(2)]
    predictor = cb.Samples.from_modules(nets).predictor()
    x = torch.randn(12, 3)
    return predictor, x, predictor.predict(x)


def test_a_loader_is_its_points_and_labels(case):
    predictor, x, y = case
    loader = DataLoader(TensorDataset(x, y), batch_size=5)
    plain, found = cb.certify(predictor, x, y, eps=0.05), cb.certify(predictor, loader, eps=0.05)
    assert torch.equal(found.lower, plain.lower) and torch.equal(found.labels, y)
    assert torch.equal(cb.certified_radius(predictor, loader).radius, cb.certified_radius(predictor, x, y).radius)
    assert torch.equal(cb.attack(predictor, loader, eps=0.05).inputs, cb.attack(predictor, x, y, eps=0.05).inputs)
    with pytest.raises(InvalidInput, match="leave y out"):
        cb.certify(predictor, loader, y, eps=0.05)


def test_radii_by_name_are_those_of_columns(case, tmp_path):
    predictor, x, y = case
    frame, eps = Frame(x.numpy(), ["a", "b", "c"]), torch.tensor([[0.2, 0.0, 0.1]])
    plain = cb.certify(predictor, x, y, eps=eps)
    named = cb.certify(predictor, frame, y, eps={"a": 0.2, "c": 0.1})
    # 0.2 and 0.1 are other numbers in float32.
    assert torch.allclose(named.lower, plain.lower, atol=1e-6) and named.eps.tolist() == [[0.2, 0.0, 0.1]]
    attacked = cb.attack(predictor, frame, y, eps={"b": 0.5})
    assert torch.equal(attacked.inputs[:, [0, 2]], x[:, [0, 2]])
    whole = certify_in_shards(predictor, frame, y, tmp_path / "s", eps={"a": 0.2, "c": 0.1}, shard=1)
    assert torch.allclose(whole.lower, named.lower, atol=1e-6) and whole.eps.tolist() == named.eps.tolist()
    again = certify_in_shards(predictor, frame, y, tmp_path / "s", eps={"a": 0.2, "c": 0.1}, shard=1)
    assert torch.equal(again.lower, whole.lower)
    with pytest.raises(InvalidInput, match="radii by name need points with named columns"):
        cb.certify(predictor, x, y, eps={"a": 0.1})
    with pytest.raises(InvalidInput, match="no named features"):
        cb.attack(predictor, x, y, eps={"a": 0.1})


def test_scaled_radii_were_proved(case):
    predictor, x, y = case
    scale = torch.tensor([[1.0, 0.0, 3.0]])
    found = cb.certified_radius(predictor, x, y, scale=scale, largest=2.0, tolerance=0.05)
    assert float(found.mean) > 0
    proved = found.certified & (found.radius > 0)
    again = cb.certify(predictor, x[proved], y[proved], eps=found.radius[proved, None] * scale.double())
    assert bool(again.certified.all())
    failed = torch.isfinite(found.unproved) & found.certified
    assert not bool(
        cb.certify(predictor, x[failed], y[failed], eps=found.unproved[failed, None] * scale).certified.any()
    )
    by_name = cb.certified_radius(
        predictor, Frame(x.numpy(), ["a", "b", "c"]), y, scale={"a": 1.0, "c": 3.0}, largest=2.0, tolerance=0.05
    )
    assert torch.equal(by_name.radius, found.radius)


def test_scaled_radii_are_stored_and_read_back(case, tmp_path):
    predictor, x, y = case
    found = cb.certified_radius(predictor, x, y, scale=torch.tensor([[1.0, 0.0, 3.0]]), tolerance=0.1)
    found.save(tmp_path / "radius.json")
    assert cb.load_certificate(tmp_path / "radius.json").scale.tolist() == [[1.0, 0.0, 3.0]]
    assert "(from 0.0 to 3.0, 0 for what does not change)" in found.statement
    for change in ([[1.0, -1.0, 3.0]], [1.0, 0.0], "a"):
        with pytest.raises(cb.errors.CorruptFile):
            cb.Radius.from_json({**found.to_json(), "scale": change})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scale": 2.0}, r"shape \(1, 3\)"),
        ({"scale": torch.ones(3)}, r"shape \(1, 3\)"),
        ({"scale": torch.ones(1, 3), "norm": "l2"}, "only the norm linf has"),
        ({"scale": torch.ones(1, 3), "domain": (-0.1, 0.1)}, "wider than the domain"),
    ],
)
def test_scales_that_make_no_sense_are_refused(case, settings, words):
    predictor, x, y = case
    with pytest.raises(InvalidInput, match=words):
        cb.certified_radius(predictor, x.clamp(-0.1, 0.1), y, **settings)


def test_fit_takes_dictionaries_and_tables(case):
    _, x, y = case

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, k):
            return {"features": x[k], "label": y[k]}

    class Duck:
        __len__, __getitem__ = Rows.__len__, Rows.__getitem__

    net = nn.Sequential(nn.Linear(3, 2))
    settings = {"algorithm": "map", "epochs": 1, "batch_size": 4, "progress": False}
    for train in (Rows(), Duck(), DataLoader(Rows(), batch_size=4), (Frame(x.numpy(), ["a", "b", "c"]), y)):
        assert cb.fit(net, train, **settings).predictor().classes == 2
    with pytest.raises(InvalidInput, match="'a' holds"):
        cb.fit(net, (Frame(np.array([["x", "y", "z"]] * 12), ["a", "b", "c"]), y), **settings)


@pytest.fixture(scope="module")
def fitted():
    """A network that was trained on a table, its predictor from a file, and the table with two columns exchanged."""
    table = cb.data.load("breast-cancer")
    posterior = cb.fit(
        cb.networks.mlp(30, [4], 2, seed=0), table, algorithm="map", likelihood="standard", epochs=1, progress=False
    )
    names = table.features
    return table, posterior, replace(table, features=(names[1], names[0], *names[2:]))


def test_a_network_keeps_the_names_of_its_columns(fitted, tmp_path):
    table, posterior, _ = fitted
    posterior.save(tmp_path / "run")
    for held in (posterior, cb.load(tmp_path / "run")):
        assert held.features == held.predictor().features == table.features


@pytest.mark.parametrize(
    "ask",
    [
        lambda predictor, table: cb.certify(predictor, table, eps=0.01),
        lambda predictor, table: cb.certify(predictor, table, eps={"mean_radius": 0.1}),
        lambda predictor, table: cb.certified_radius(predictor, table, method="pairwise", tolerance=0.2),
        lambda predictor, table: cb.attack(predictor, table, eps=0.01),
    ],
    ids=["certify", "by name", "radius", "attack"],
)
def test_columns_in_another_order_are_refused(fitted, ask):
    table, posterior, exchanged = fitted
    few = replace(table, test=Split(*(part[:3] for part in table.test)))
    ask(posterior.predictor(), few)
    with pytest.raises(InvalidInput, match="not in the order in which the network was trained"):
        ask(posterior.predictor(), exchanged)
