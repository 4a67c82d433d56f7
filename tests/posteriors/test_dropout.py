"""MC dropout: each sample is the network with masks of its own, as torch itself would run it with those masks."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import certibayes as cb
from certibayes.errors import InvalidInput, UnsupportedLayer


class Net(nn.Module):
    """Dropout in ways that people write it: a layer called twice, a function, channels, and a residual connection."""

    def __init__(self, inplace=False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.channels, self.drop = nn.Dropout2d(0.4), nn.Dropout(0.3, inplace)
        self.first, self.second, self.last = nn.Linear(48, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        x = self.channels(torch.relu(self.norm(self.conv(x)))).flatten(1)
        hidden = self.drop(torch.relu(self.first(x)))
        hidden = hidden + self.drop(torch.relu(self.second(hidden)))
        return self.last(functional.dropout(hidden, 0.5, training=self.training))


def signals():
    return nn.Sequential(
        nn.Unflatten(1, (4, 3)), nn.Dropout1d(0.5), nn.Dropout(0.0), nn.Flatten(), nn.Linear(12, 5), nn.Dropout(),
        nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


class OwnDropout(nn.Dropout):
    """Always on, as people write it for MC dropout."""

    def forward(self, x):
        return functional.dropout(x, self.p, training=True)


NETS = {
    "images": (Net, (2, 4, 4)),
    "in place": (lambda: Net(inplace=True), (2, 4, 4)),
    "signals": (signals, (12,)),
    "at the input": (lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(5, 3)), (5,)),
    "always on": (lambda: nn.Sequential(nn.Linear(5, 6), OwnDropout(0.2), nn.ReLU(), nn.Linear(6, 3)), (5,)),
    "at the end": (lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.2)), (5,)),
}


def make(name, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = NETS[name][0]()
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2.0)
    return net.eval(), NETS[name][1]


def posterior(name, samples=6, **settings):
    net, shape = make(name)
    return net, cb.Samples.from_dropout(net, samples, input_shape=shape, **settings)


def masks_of(made):
    return {name: tensor for name, tensor in made.stacked.items() if name.startswith("dropout_")}


def points(name, count=4):
    return torch.rand(count, *NETS[name][1], generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [False, True])
def test_torch_with_the_same_masks_gives_the_same(name, training, monkeypatch):
    net, made = posterior(name)
    outputs, x = made.predictor().sample_outputs(points(name)), points(name)
    # From here on torch's own dropout takes our masks, in the order in which it is called.
    for kind in ("dropout", "dropout1d", "dropout2d"):

        def fixed(input, p=0.5, training=True, inplace=False):
            return input if p == 0 else input * next(masks)

        monkeypatch.setattr(functional, kind, fixed)
    net.train(training)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    for sample in range(6):
        masks = iter([mask[sample] for mask in masks_of(made).values()])
        torch.testing.assert_close(outputs[sample], net(x).detach(), rtol=1e-5, atol=1e-5)
        assert next(masks, None) is None


@pytest.mark.parametrize("name", ["images", "signals"])
def test_the_mean_is_that_of_torch(name):
    net, made = posterior(name, 3000)
    for part in net.modules():
        part.training = not isinstance(part, nn.BatchNorm2d)
    x = points(name, 1)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        # Every row of a batch has masks of its own in torch.
        drawn = torch.softmax(net(x.expand(3000, *x.shape[1:])).double(), -1)
    ours = made.predictor().sample_log_probabilities(x).exp()[:, 0]
    error = (drawn.var(0) / 3000 + ours.var(0) / 3000).sqrt()
    assert bool(((drawn.mean(0) - ours.mean(0)).abs() < 4 * error).all())
    torch.testing.assert_close(drawn.std(0), ours.std(0), rtol=0.1, atol=0)


def test_masks_drop_as_often_as_they_should():
    _, made = posterior("images", 2000)
    found = masks_of(made)
    assert [tuple(mask.shape[1:]) for mask in found.values()] == [(3, 1, 1), (6,), (6,), (6,)]
    for mask, p in zip(found.values(), (0.4, 0.3, 0.3, 0.5), strict=True):
        assert set(mask.unique().tolist()) == {0.0, float(torch.tensor(1.0) / (1 - p))}
        assert abs(float((mask == 0).double().mean()) - p) < 4 * (p * (1 - p) / mask.numel()) ** 0.5
    # Every mask is drawn for itself: also those of one layer that is called twice.
    first, second = (found[f"dropout_{i}"] == 0 for i in (1, 2))
    assert abs(float((first == second).double().mean()) - (0.3**2 + 0.7**2)) < 0.03


def test_everything_can_be_dropped():
    net = nn.Sequential(nn.Linear(5, 6), nn.Dropout(1.0), nn.Linear(6, 3)).eval()
    found = cb.Samples.from_dropout(net, 2).predictor().sample_outputs(torch.rand(4, 5))
    assert torch.equal(found, net[2].bias.detach().expand(2, 4, 3))


def test_seeds():
    first, again = posterior("images", 3)[1], posterior("images", 6)[1]
    other = posterior("images", 6, seed=1)[1]
    assert all(torch.equal(mask, masks_of(again)[name][:3]) for name, mask in masks_of(first).items())
    assert again.predictor().digest == posterior("images", 6)[1].predictor().digest != other.predictor().digest


def test_files_and_words(tmp_path):
    _, made = posterior("images", domain=(0.0, 1.0))
    made.save(tmp_path)
    loaded = cb.load(tmp_path)
    assert loaded.predictor().digest == made.predictor().digest and loaded.domain == (0.0, 1.0)
    assert "MC dropout, masks drawn from seed 0 in 4 places" in repr(loaded)


def test_the_network_keeps_its_weights_and_mode():
    net, _ = make("images")
    net.train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    cb.Samples.from_dropout(net, 3, input_shape=(2, 4, 4))
    assert net.training and all(torch.equal(before[name], t) for name, t in net.state_dict().items())
    assert not any("dropout" in name for name, _ in net.named_buffers())


@pytest.mark.parametrize("name", ["images", "in place", "signals", "always on"])
@pytest.mark.parametrize("method", ["auto", "best"])
def test_certificates_hold(name, method, tmp_path):
    """Bounds contain what every sampled point has, attacks break nothing that is certified, and the checker agrees."""
    _, made = posterior(name, 5, domain=(0.0, 1.0))
    predictor, x = made.predictor(), points(name, 6)
    certificate = cb.certify(predictor, x, eps=0.02, method=method)
    assert bool(certificate.certified.any())
    for seed in range(20):
        noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        moved = (x + 0.02 * noise.sign()).clamp(0, 1)
        found = predictor.probabilities(torch.minimum(torch.maximum(moved, x - 0.02), x + 0.02)).double()
        assert bool(((found >= certificate.lower) & (found <= certificate.upper)).all())
    attacked = cb.attack(predictor, x, certificate.labels, eps=0.02)
    assert not bool((attacked.success & certificate.certified).any())
    certificate.save(tmp_path / "certificate.json")
    assert cb.check_certificate(cb.load_certificate(tmp_path / "certificate.json"), predictor, x).holds


class TestRefused:
    def test_no_dropout(self):
        with pytest.raises(InvalidInput, match=r"Linear has no dropout.*Point\(net\)"):
            cb.Samples.from_dropout(nn.Linear(5, 3))
        with pytest.raises(InvalidInput, match="no dropout"):
            cb.Samples.from_dropout(nn.Sequential(nn.Dropout(0.0), nn.Linear(5, 3)))

    @pytest.mark.parametrize("samples", [0, -1, 2.5, True])
    def test_numbers_of_samples(self, samples):
        with pytest.raises(InvalidInput, match="samples must be"):
            cb.Samples.from_dropout(make("signals")[0], samples)

    @pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
    def test_layers_whose_masks_are_no_factors(self, kind):
        """They have no effect on the network without dropout, where they are left out; here they would be forgotten."""
        with pytest.raises(UnsupportedLayer, match=f"{kind.__name__} does not multiply"):
            cb.Samples.from_dropout(nn.Sequential(nn.Dropout(), nn.Linear(5, 3), kind()))

    def test_functions_whose_masks_are_no_factors(self):
        class Alpha(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.drop = nn.Linear(5, 3), nn.Dropout()

            def forward(self, x):
                return nn.functional.alpha_dropout(self.layer(self.drop(x)), 0.5, self.training)

        with pytest.raises(UnsupportedLayer, match="alpha_dropout does not multiply"):
            cb.Samples.from_dropout(Alpha())

    def test_whole_inputs_are_not_dropped(self):
        with pytest.raises(UnsupportedLayer, match=r"Dropout1d acts on vectors.*Use nn\.Dropout"):
            cb.Samples.from_dropout(nn.Sequential(nn.Linear(5, 3), nn.Dropout1d()))

    def test_a_probability_that_is_computed(self):
        class Computed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(5, 3)

            def forward(self, x):
                return nn.functional.dropout(self.layer(x), x.size(1) / 10)

        with pytest.raises(UnsupportedLayer, match="only a plain number"):
            cb.Samples.from_dropout(Computed())

    def test_dropout_in_place_that_changes_what_is_read_later(self):
        class Changed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.drop = nn.Linear(5, 3), nn.Dropout(inplace=True)

            def forward(self, x):
                hidden = self.layer(x)
                return self.drop(hidden) + hidden

        with pytest.raises(UnsupportedLayer, match="in place"):
            cb.Samples.from_dropout(Changed())


SPECIFICATION = cb.vnnlib.parse_vnnlib(
    "".join(f"(declare-const X_{i} Real)" for i in range(5))
    + "".join(f"(declare-const Y_{i} Real)" for i in range(3))
    + "".join(f"(assert (>= X_{i} 0.0))(assert (<= X_{i} 1.0))" for i in range(5))
    + "(assert (>= Y_0 100.0))"
)
WAYS = {
    "Point": cb.Point,
    "Samples": lambda net: cb.Samples(net, [dict(net.named_parameters())]),
    "from_modules": lambda net: cb.Samples.from_modules([net, net]),
    "from_state_dicts": lambda net: cb.Samples.from_state_dicts(net, [net.state_dict()]),
    "DiagonalGaussian": lambda net: cb.DiagonalGaussian(
        net, dict(net.named_parameters()), {name: torch.ones_like(p) for name, p in net.named_parameters()}
    ),
    "verify": lambda net: cb.verify(net, SPECIFICATION, budget=0),
    "attack": lambda net: cb.attack(net, torch.rand(2, 5), torch.tensor([0, 1]), eps=0.1),
}
"""Ways by which a trained network comes to be certified or attacked."""


class Function(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        return functional.dropout(self.layer(x), 0.5, self.training)


SWITCHED_ON = {
    "a layer": lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.1)),
    "channels": lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Dropout1d(), nn.Flatten(), nn.Linear(5, 3)),
    "a function": Function,
    "one layer in training": lambda: nn.Sequential(nn.Linear(5, 3).eval(), nn.Dropout(0.1)),
}


class TestSwitchedOn:
    @pytest.mark.parametrize("kind", SWITCHED_ON)
    @pytest.mark.parametrize("way", WAYS)
    def test_it_is_refused_with_both_remedies(self, way, kind):
        net = SWITCHED_ON[kind]()
        net.input_shape = (5,)
        with pytest.raises(InvalidInput, match=r"dropout is switched on .*net\.eval\(\).*Samples\.from_dropout\(net"):
            WAYS[way](net)
        WAYS[way](net.eval())

    @pytest.mark.parametrize("way", WAYS)
    def test_no_probability_is_no_dropout(self, way):
        net = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.0), nn.BatchNorm1d(3))
        WAYS[way](net)

    def test_what_is_always_on_is_refused_in_eval_mode_too(self):
        net, _ = make("always on")
        with pytest.raises(InvalidInput, match="dropout is switched on"):
            WAYS["attack"](net)
        with pytest.raises(UnsupportedLayer, match=r"switched on in eval mode.*from_dropout"):
            cb.Point(net)

    def test_fit_is_not_concerned(self):
        net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)).train()
        x, y = torch.rand(20, 5), torch.arange(20) % 3
        made = cb.fit(net, (x, y), algorithm="map", likelihood="standard", epochs=1, progress=False)
        cb.certify(made.predictor(2), x[:2], eps=0.01)
