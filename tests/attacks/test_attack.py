import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import PGD, ascend, cross_entropy_loss, label_scores, margin_loss, pgd
from certibayes.errors import InvalidInput
from certibayes.regions import InputRegion

from .cases import posterior_of, predictor_of, rand


class LinearModel(nn.Module):
    """log softmax of W x: the worst input of two classes is a corner that is known."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return torch.log_softmax(x @ self.weight.T, -1)


class Counting(nn.Module):
    """A predictor that counts how often it is asked."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x):
        self.calls += 1
        return self.inner(x)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    eps=st.floats(0.0, 0.75),
    domain=st.sampled_from([None, (0.0, 1.0), (0.1, 0.9), (-3.0, 1.0)]),
)
def test_no_attack_leaves_ball_or_domain(seed, eps, domain):
    """Compared exactly, in float32, with what clamping gives."""
    predictor = predictor_of(seed=seed)
    x = rand(8, 6, seed=seed)
    if domain is not None:
        x = x.clamp(*domain)
        x[:4] = x[:4].round().clamp(*domain)  # points on the border of the domain
    found = cb.attack(predictor, x, eps=eps, domain=domain, method=PGD(steps=4, restarts=3)).inputs
    lower, upper = x - eps, x + eps
    if domain is not None:
        lower, upper = lower.clamp(*domain), upper.clamp(*domain)
    assert torch.equal(found, found.clamp(lower, upper))


def test_the_known_optimum_of_a_linear_model_is_found():
    weight = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
    x, y = rand(10, 6), torch.arange(10) % 2
    model = LinearModel(weight)
    # Only points that the best attack cannot turn are pushed to the optimum; so take a small radius.
    found = cb.attack(model, x, y, eps=0.01, method=PGD(steps=20))
    corner = x - 0.01 * (weight[y] - weight[1 - y]).sign()
    best = margin_loss(model(corner), y)
    unbroken = best <= 0
    assert unbroken.any()
    torch.testing.assert_close(found.inputs[unbroken], corner[unbroken])


def test_an_attack_succeeds_exactly_where_a_linear_model_can_be_broken():
    weight = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
    x, y = rand(200, 6), torch.arange(200) % 2
    model = LinearModel(weight)
    difference = weight[y] - weight[1 - y]
    margin = (difference * x).sum(-1) - 0.1 * difference.abs().sum(-1)
    found = cb.attack(model, x, y, eps=0.1, method=PGD(steps=20))
    clear = margin.abs() > 1e-5
    assert torch.equal(found.success[clear], margin[clear] < 0)
    assert 0.0 < found.robust_accuracy < 1.0


def test_success_is_what_the_predictor_says():
    predictor = predictor_of()
    x, y = rand(40, 6), torch.arange(40) % 3
    found = cb.attack(predictor, x, y, eps=0.2, method=PGD(steps=5))
    assert torch.equal(found.predicted, predictor.predict(found.inputs))
    assert torch.equal(found.success, found.predicted != y)
    assert torch.equal(found.labels, y)
    assert found.robust_accuracy == pytest.approx(float((found.predicted == y).double().mean()))


def test_misclassified_points_count_as_broken_and_stay_where_they_are():
    predictor = predictor_of()
    x = rand(30, 6)
    wrong = (predictor.predict(x) + 1) % 3
    found = cb.attack(predictor, x, wrong, eps=0.3, method=PGD(steps=3))
    assert found.success.all()
    assert torch.equal(found.inputs, x)


def test_without_labels_the_predicted_classes_are_attacked():
    predictor = predictor_of()
    x = rand(30, 6)
    found = cb.attack(predictor, x, eps=0.05, method=PGD(steps=3))
    assert torch.equal(found.labels, predictor.predict(x))
    same = cb.attack(predictor, x, predictor.predict(x), eps=0.05, method=PGD(steps=3))
    assert torch.equal(found.inputs, same.inputs)


def test_a_radius_of_zero_changes_nothing():
    predictor = predictor_of()
    x = rand(20, 6)
    x[0] = 0.0
    x[1] = 1.0
    found = cb.attack(predictor, x, eps=0.0, domain=(0.0, 1.0), method=PGD(steps=3))
    assert torch.equal(found.inputs, x)
    assert not found.success.any()


@pytest.mark.parametrize("batch_size", [500, 20])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_more_restarts_are_never_worse(seed, batch_size):
    predictor = predictor_of((20, 20), seed=seed)
    x = rand(60, 6, seed=seed)
    labels = predictor.predict(x)
    losses = []
    for restarts in (1, 2, 4, 6):
        method = PGD(steps=3, restarts=restarts)
        found = cb.attack(predictor, x, eps=0.15, domain=(0.0, 1.0), method=method, seed=seed, batch_size=batch_size)
        losses.append(margin_loss(predictor(found.inputs).detach(), labels))
    for fewer, more in itertools.pairwise(losses):
        # A point that is broken is left alone, so only its being broken counts.
        assert torch.where(fewer > 0, more > 0, more >= fewer - 1e-6).all()


def test_a_float32_input_on_the_border_is_inside_its_domain():
    x = torch.full((2, 6), 0.6)
    cb.attack(predictor_of(), x, eps=0.1, domain=(0.0, 0.6), method=PGD(steps=1))


def test_the_same_seed_gives_the_same_attack():
    predictor = predictor_of((20, 20))
    x = rand(40, 6)
    one, same = (cb.attack(predictor, x, eps=0.1, method=PGD(steps=3), seed=5).inputs for _ in range(2))
    assert torch.equal(one, same)


def test_another_seed_starts_elsewhere():
    predictor = predictor_of((20, 20))
    x = rand(40, 6)
    one, other = (cb.attack(predictor, x, eps=0.1, method=PGD(steps=1, restarts=4), seed=s).inputs for s in (0, 1))
    assert not torch.equal(one, other)


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    cb.attack(predictor_of(), rand(5, 6), eps=0.1, method=PGD(steps=2))
    assert torch.equal(state, torch.get_rng_state())


def test_inputs_and_predictor_are_left_alone():
    predictor, x = predictor_of(), rand(10, 6)
    before, digest = x.clone(), predictor.digest
    cb.attack(predictor, x, eps=0.2, method=PGD(steps=3))
    assert torch.equal(x, before)
    assert cb.Predictor(predictor.graph, predictor.samples).digest == digest


def test_batches_cover_every_point():
    weight = torch.randn(2, 6, generator=torch.Generator().manual_seed(2))
    x, y = rand(23, 6), torch.arange(23) % 2
    whole = cb.attack(LinearModel(weight), x, y, eps=0.1, method=PGD(steps=20), batch_size=100)
    parts = cb.attack(LinearModel(weight), x, y, eps=0.1, method=PGD(steps=20), batch_size=5)
    assert torch.equal(whole.success, parts.success)


def test_images_and_ordinary_modules_can_be_attacked():
    net = nn.Sequential(cb.networks.cnn_small((1, 12, 12), 4), nn.LogSoftmax(-1))
    found = cb.attack(net, rand(3, 1, 12, 12), eps=0.1, method=PGD(steps=2, restarts=2), domain=(0.0, 1.0))
    assert found.inputs.shape == (3, 1, 12, 12)


def test_no_points_at_all():
    found = cb.attack(predictor_of(), torch.empty(0, 6), eps=0.1, method=PGD(steps=2))
    assert len(found.success) == 0
    assert found.robust_accuracy == 0.0


def test_the_search_stops_when_everything_is_broken():
    counting = Counting(predictor_of())
    x = rand(10, 6)
    wrong = (counting.inner.predict(x) + 1) % 3
    cb.attack(counting, x, wrong, eps=0.1, method=PGD(steps=50, restarts=10))
    assert counting.calls <= 4


class TestErrors:
    x = rand(4, 6)
    y = torch.tensor([0, 1, 2, 0])

    def refuse(self, message, x=None, y=None, **settings):
        settings = {"eps": 0.1, "method": PGD(steps=2), **settings}
        with pytest.raises(InvalidInput, match=message):
            cb.attack(predictor_of(), self.x if x is None else x, self.y if y is None else y, **settings)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_inputs_that_are_not_numbers(self, bad):
        x = self.x.clone()
        x[1, 2] = bad
        self.refuse("NaN or infinite", x=x)

    def test_inputs_outside_the_domain(self):
        self.refuse("outside the domain", x=self.x + 1.0, domain=(0.0, 1.0))

    def test_a_radius_wider_than_the_domain(self):
        self.refuse("eps=8 is wider than the domain.*8/255", eps=8, domain=(0.0, 1.0))
        found = cb.attack(predictor_of(), self.x, self.y, eps=8, domain=None, method=PGD(steps=2))
        assert len(found) == 4

    def test_an_inverted_domain(self):
        self.refuse("domain", domain=(1.0, 0.0))

    def test_labels_beyond_the_classes(self):
        self.refuse("3 classes", y=torch.tensor([0, 1, 2, 3]))

    def test_too_few_labels(self):
        self.refuse("4 inputs but 3 labels", y=self.y[:3])

    def test_float_labels(self):
        self.refuse("integers", y=self.y.float())

    @pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf])
    def test_bad_radii(self, eps):
        self.refuse("eps", eps=eps)

    def test_an_unknown_method(self):
        self.refuse("method", method="fgsn")

    def test_a_single_input_without_its_batch_dimension(self):
        self.refuse("batch dimension", x=self.x[0])

    def test_a_batch_size_of_zero(self):
        self.refuse("batch_size", batch_size=0)

    def test_integer_inputs(self):
        self.refuse("float", x=(self.x * 255).to(torch.uint8))


class TestParts:
    def test_label_scores_pick_the_own_column(self):
        scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        assert label_scores(scores, torch.tensor([1, 0])).tolist() == [2.0, 3.0]

    def test_cross_entropy(self):
        log_p = torch.log(torch.tensor([[0.2, 0.8]]))
        assert float(cross_entropy_loss(log_p, torch.tensor([1]))) == pytest.approx(-math.log(0.8))

    def test_the_margin_is_positive_once_the_attack_succeeds(self):
        log_p = torch.log(torch.tensor([[0.2, 0.7, 0.1], [0.2, 0.7, 0.1]]))
        found = margin_loss(log_p, torch.tensor([1, 0]))
        assert found.tolist() == pytest.approx([math.log(0.2 / 0.7), math.log(0.7 / 0.2)])

    def test_ascend_climbs_to_the_nearest_corner(self):
        slope = torch.tensor([[1.0, -2.0]])
        start, lower, upper = torch.zeros(1, 2), torch.tensor([[-0.5, -0.25]]), torch.tensor([[0.75, 0.5]])
        found = ascend(lambda x: (slope * x).sum(-1), start, lower, upper, steps=10, step_size=0.25)
        assert found.tolist() == [[0.75, -0.25]]

    def test_ascend_projects_its_start(self):
        found = ascend(lambda x: x.sum(-1), torch.full((1, 2), 9.0), torch.zeros(1, 2), torch.ones(1, 2), 0, 0.1)
        assert found.tolist() == [[1.0, 1.0]]

    def test_the_best_iterate_is_kept_not_the_last(self):
        """A step that jumps over the hole must not lose it: the loss is high only in a narrow band."""

        def log_probabilities(x):
            inside = torch.exp(-((x - 0.3) ** 2) * 400).sum(-1)
            return torch.stack([torch.zeros_like(inside), 2 * inside - 1.5], -1)

        x, y = torch.zeros(1, 1), torch.zeros(1, dtype=torch.long)
        settings = PGD(steps=10, restarts=1, step_size=0.15)
        found = pgd(log_probabilities, InputRegion.around(x, 1.0), y, torch.Generator(), settings)
        assert float(margin_loss(log_probabilities(found), y)) > 0


def test_pgd_climbs_from_given_starts_brought_into_the_ball():
    """Two dips: from the point it slides into the shallow one, from a start beyond the other into the deep one."""

    def model(x):
        dips = -torch.relu(1 - (x + 0.5).abs() * 4) - 3 * torch.relu(1 - (x - 0.8).abs() * 4)
        return torch.cat([2 + dips, torch.zeros_like(x)], 1)

    x, y = torch.full((1, 1), -0.4), torch.zeros(1, dtype=torch.int64)
    settings = PGD(steps=40, restarts=1, losses=("margin",))
    plain = pgd(model, InputRegion.around(x, 1.3), y, torch.Generator(), settings)
    led = pgd(model, InputRegion.around(x, 1.3), y, torch.Generator(), settings, starts=[torch.full((1, 1), 5.0)])
    assert float(model(plain)[0, 0]) > 0 > float(model(led)[0, 0])
    assert float((led - x).abs()) <= 1.3


@pytest.mark.parametrize("convert", [lambda t: t.numpy(), lambda t: t.tolist()], ids=["numpy", "lists"])
def test_arrays_and_lists_are_as_good_as_tensors(convert):
    predictor, x, y = predictor_of(), rand(5, 6), torch.tensor([0, 1, 2, 0, 1])
    found = cb.attack(predictor, convert(x), convert(y), eps=0.1, method=PGD(steps=3))
    expected = cb.attack(predictor, x, y, eps=0.1, method=PGD(steps=3))
    assert torch.equal(found.inputs, expected.inputs) and torch.equal(found.success, expected.success)


class TestDomain:
    """By default the domain is the predictor's own."""

    class Bounded(LinearModel):
        domain = (0.25, 0.75)

    model = Bounded(torch.randn(2, 6, generator=torch.Generator().manual_seed(1)))
    x = 0.25 + 0.5 * rand(20, 6)

    def inputs(self, **settings):
        return cb.attack(self.model, self.x, eps=0.3, method="fgsm", **settings).inputs

    def test_the_predictors_own_is_the_default(self):
        assert torch.equal(self.inputs(), self.inputs(domain=(0.25, 0.75)))
        assert torch.equal(self.inputs(), self.inputs(domain="predictor"))
        assert float(self.inputs().max()) <= 0.75 < float(self.inputs(domain=None).max())

    def test_a_model_without_one_has_no_limits(self):
        model = LinearModel(self.model.weight)
        found = cb.attack(model, self.x, eps=0.3, method="fgsm").inputs
        assert torch.equal(found, self.inputs(domain=None))

    def test_a_posterior_passes_its_own_on(self):
        class Bounded:
            """A posterior as far as attacks know one."""

            task, domain, predictor = "classification", (0.0, 1.0), posterior_of().predictor

        found = cb.attack(Bounded(), rand(8, 6), eps=0.5, method="fgsm", draws=1).inputs
        assert float(found.min()) >= 0.0 and float(found.max()) <= 1.0

    def test_any_other_word_is_refused(self):
        with pytest.raises(InvalidInput, match='"predictor"'):
            self.inputs(domain="pixels")


class TestResult:
    def test_its_repr_is_a_few_lines(self):
        predictor, x = predictor_of(), rand(50, 6)
        y = torch.where(torch.arange(50) < 40, predictor.predict(x), (predictor.predict(x) + 1) % 3)
        found = cb.attack(predictor, x, y, eps=0.2, norm="l2", method=[PGD(steps=5), "fgsm"])
        broken = [int((found.broken_by == stage).sum()) for stage in (1, 2)]
        assert broken[0] > 0
        assert repr(found).splitlines() == [
            "Attacked(50 points, l2)",
            "  clean accuracy:  80.0%",
            f"  robust accuracy: {100 * found.robust_accuracy:.1f}%",
            f"  points broken:   pgd {broken[0]}, fgsm {broken[1]}",
        ]

    def test_of_no_points(self):
        assert "0 points" in repr(cb.attack(predictor_of(), torch.empty(0, 6), eps=0.1))


def test_progress_is_a_bar_a_function_or_nothing(capsys):
    predictor, x, seen = predictor_of(), rand(5, 6), []
    cb.attack(predictor, x, eps=0.1, method="fgsm", progress=lambda *counts: seen.append(counts))
    assert seen[-1] == (2, 2)
    cb.attack(predictor, x, eps=0.1, method="fgsm")
    assert capsys.readouterr() == ("", "")
    cb.attack(predictor, x, eps=0.1, method="fgsm", progress=True)
    assert "attacking" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="progress must be"):
        cb.attack(predictor, x, eps=0.1, progress=None)
