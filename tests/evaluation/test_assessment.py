"""The whole assessment: it is made of the parts, in the right places."""

import math

import pytest
import torch

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.evaluation import accuracy, assess, auroc, likelihood_ratio, push_on, score_of, uncertainty
from certibayes.regions import NORMS, InputRegion


def predictor(classes=3, samples=4, seed=0, std=0.5):
    net = cb.networks.mlp(4, [6], classes, seed=seed)
    mean = dict(net.named_parameters())
    stds = {name: torch.full_like(p, std) for name, p in mean.items()}
    return cb.DiagonalGaussian(net, mean, stds).predictor(samples)


def inputs(count, seed=0):
    return torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def found():
    network, x = predictor(), inputs(30)
    return network, x, assess(network, x, torch.arange(30) % 3, 3 * inputs(20, 1), eps=0.05, steps=3, domain=(0, 1))


def test_figures_are_those_of_the_parts(found):
    network, x, assessment = found
    figures = assessment.summary()
    inside, outside = uncertainty(network, x), uncertainty(network, 3 * inputs(20, 1))
    assert figures["in"]["n"] == 30 and figures["out"]["n"] == 20 and figures["adversarial"]["n"] == 30
    assert figures["in"]["accuracy"] == accuracy(inside.log_probabilities, torch.arange(30) % 3)
    assert figures["out"]["mutual_information"] == pytest.approx(float(outside.mutual_information.mean()))
    for score, detected in figures["detection"].items():
        assert detected["auroc"] == auroc(score_of(inside, score), score_of(outside, score))
    assert figures["likelihood_ratio"] == likelihood_ratio(inside.max_probability, outside.max_probability)
    error = float(outside.expected_entropy.std()) / math.sqrt(20)
    assert figures["out"]["expected_entropy_se"] == pytest.approx(error)


def test_in_and_out_are_not_swapped(found):
    network, x, assessment = found
    swapped = assess(network, 3 * inputs(20, 1), torch.arange(20) % 3, x).summary()
    for score, detected in assessment.summary()["detection"].items():
        assert detected["auroc"] == pytest.approx(1 - swapped["detection"][score]["auroc"], abs=1e-6)
    assert assessment.summary()["likelihood_ratio"] == pytest.approx(1 / swapped["likelihood_ratio"])


def test_attacked_inputs_are_measured_where_they_were_pushed(found):
    network, x, assessment = found
    figures = assessment.summary()["adversarial"]
    pushed = push_on(network, x, torch.arange(30) % 3, assessment.attack.inputs, eps=0.05, domain=(0, 1), steps=3)
    again = uncertainty(network, pushed)
    assert figures["predictive_entropy"] == pytest.approx(float(again.predictive_entropy.mean()))
    assert figures["accuracy"] == assessment.attack.robust_accuracy <= assessment.summary()["in"]["accuracy"]


def test_pushing_on_stays_in_the_ball_and_never_helps_the_label():
    network, x, y = predictor(), inputs(23), torch.arange(23) % 3
    start = (x + 0.2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) - 0.1).clamp(0, 1)

    def given_to_label(at):
        return network(at).gather(-1, y[:, None]).squeeze(-1)

    pushed = push_on(network, x, y, start, eps=0.1, domain=(0, 1), steps=10, batch_size=7)
    assert float((pushed - x).abs().max()) <= 0.1 + 1e-6 and 0 <= float(pushed.min()) <= float(pushed.max()) <= 1
    assert bool((given_to_label(pushed) <= given_to_label(start)).all())
    assert float(given_to_label(pushed).mean()) < float(given_to_label(start).mean()) - 0.01


DOMAINS = {
    "none": None,
    "numbers": (0, 1),
    "features": (torch.tensor([[0.0, 0.0, -1.0, 0.0]]), torch.tensor([[1.0, 2.0, 1.0, torch.inf]])),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("domain", DOMAINS)
def test_pushing_on_stays_in_the_region_in_every_norm_and_domain(norm, domain):
    """Compared in floats, without tolerance; and it gets somewhere."""
    network, x, y = predictor(), inputs(23), torch.arange(23) % 3
    region = InputRegion.around(x, 0.3, norm, DOMAINS[domain])
    found = assess(network, x, y, inputs(4, 1), eps=0.3, norm=norm, domain=DOMAINS[domain], steps=5)
    pushed = push_on(network, x, y, found.attack.inputs, eps=0.3, norm=norm, domain=DOMAINS[domain], steps=5)
    assert torch.equal(region.project(pushed), pushed) and bool((region.distance(pushed) <= 0.3).all())
    assert torch.equal(uncertainty(network, pushed).log_probabilities, found.attacked.log_probabilities)
    before, after = (logs.gather(-1, y[:, None]) for logs in (network(x), network(pushed)))
    assert bool((after <= before + 1e-6).all()) and float((before - after).mean()) > 0.05


def test_pushing_on_finds_the_worst_corner_of_a_linear_network():
    net = torch.nn.Linear(4, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, -1.0, 2.0, 0.5], [0.0, 0.0, 0.0, 0.0]]))
        net.bias.zero_()
    network, x = cb.Point(net, input_shape=(4,)).predictor(1), torch.full((1, 4), 0.5)
    pushed = push_on(network, x, torch.tensor([0]), x, eps=0.25, steps=4)
    torch.testing.assert_close(pushed, torch.tensor([[0.25, 0.75, 0.25, 0.25]]))


def test_without_a_radius_nothing_is_attacked():
    assessment = assess(predictor(), inputs(5), torch.zeros(5, dtype=torch.long), inputs(4, 1))
    assert assessment.attacked is None and set(assessment.sets) == {"in", "out"}
    assert "adversarial" not in assessment.summary()


def test_a_confidence_becomes_a_score_of_uncertainty():
    found = uncertainty(predictor(), inputs(9))
    torch.testing.assert_close(score_of(found, "max_probability"), 1 - found.log_probabilities.exp().amax(-1))
    assert score_of(found, "expected_entropy") is found.expected_entropy
    with pytest.raises(InvalidInput, match="max_probability"):
        score_of(found, "confidence")


@pytest.mark.parametrize("score", ["expected_entropy", "mutual_information", "max_probability"])
def test_histograms_have_the_same_bins(found, score):
    drawn = found[2].histograms(score, bins=7)
    assert set(drawn) == {"in", "out", "adversarial"}
    for histogram in drawn.values():
        assert float(histogram.fractions.sum()) == pytest.approx(1)
        assert float(histogram.edges[-1]) == pytest.approx(1.0 if score == "max_probability" else math.log(3))


@pytest.mark.parametrize(("classes", "samples", "count"), [(2, 1, 1), (2, 3, 5), (100, 2, 8)])
def test_the_smallest_and_the_largest_cases(classes, samples, count):
    labels = torch.arange(count) % classes
    figures = assess(predictor(classes, samples), inputs(count), labels, inputs(2, 1), eps=0.01, steps=1).summary()
    for name in ("in", "out", "adversarial"):
        known = figures[name]
        assert 0 <= known["expected_entropy"] <= known["predictive_entropy"] + 1e-12 <= math.log(classes) + 1e-9
        assert known["mutual_information"] <= math.log(min(samples, classes)) + 1e-9
        assert 1 / classes <= known["max_probability"] <= 1
        assert all(math.isfinite(value) for value in known.values())
    if samples == 1:
        assert figures["in"]["mutual_information"] == 0.0 == figures["in"]["disagreement"]


def test_what_cannot_be_assessed_is_refused():
    network, x, y = predictor(), inputs(5), torch.zeros(5, dtype=torch.long)
    for arguments, words in (
        ((x, y, x[:0]), "no out-of-distribution"),
        ((x[:0], y[:0], x), "no in-distribution"),
        ((x, y, torch.rand(3, 5)), "shape"),
        ((x, None, x), "labels"),
        ((x, y[:2], x), "labels"),
        ((x, y + 3, x), "classes"),
        ((x, y, torch.full((3, 4), math.nan)), "NaN"),
    ):
        with pytest.raises(InvalidInput, match=words):
            assess(network, *arguments)


def test_its_repr_is_a_few_lines(found):
    shown = repr(found[2]).splitlines()
    right, robust = found[2].summary()["in"]["accuracy"], found[2].attack.robust_accuracy
    assert shown[0].startswith(f"Assessment(accuracy {right:.1%}, robust accuracy {robust:.1%}, ECE 0.")
    assert [line.split(":")[0].strip() for line in shown[1:]] == [
        "in distribution",
        "out of distribution",
        "adversarial",
    ]
    assert "30 predictions" in shown[1] and "20 predictions" in shown[2]
    mean = float(found[2].inside.predictive_entropy.mean())
    assert f"mean entropy {mean:.4f}" in shown[1] and f"mean entropy {mean:.4f}" in repr(found[2].inside)


@pytest.mark.parametrize("convert", [lambda t: t.numpy(), lambda t: t.tolist()], ids=["numpy", "lists"])
def test_arrays_and_lists_are_as_good_as_tensors(convert):
    network, x, y, outside = predictor(), inputs(6), torch.arange(6) % 3, inputs(4, 1)
    given = [convert(tensor) for tensor in (x, y, outside)]
    settings = {"eps": 0.1, "steps": 2, "domain": (0, 1)}
    assert cb.assess(network, *given, **settings).summary() == cb.assess(network, x, y, outside, **settings).summary()
    assert torch.equal(push_on(network, given[0], given[1], given[0], eps=0.1), push_on(network, x, y, x, eps=0.1))


def test_float64_arrays_are_taken_by_a_float32_predictor():
    network, x = predictor(), inputs(6)
    found = cb.assess(network, x.double().numpy(), [0, 1, 2] * 2, x.double().numpy(), eps=0.1, steps=2)
    torch.testing.assert_close(found.inside.log_probabilities, uncertainty(network, x).log_probabilities)


def test_the_domain_is_the_predictors_own_by_default():
    network, x, y = predictor(), inputs(12), torch.arange(12) % 3
    network.domain = (0.0, 1.0)
    settings = {"eps": 0.5, "steps": 3}
    own = assess(network, x, y, x, **settings).attacked.log_probabilities
    stated = assess(network, x, y, x, domain=(0.0, 1.0), **settings).attacked.log_probabilities
    unlimited = assess(network, x, y, x, domain=None, **settings).attacked.log_probabilities
    assert torch.equal(own, stated) and not torch.equal(own, unlimited)


def test_a_radius_wider_than_the_domain_is_refused():
    x, y = inputs(4), [0, 1, 2, 0]
    for call in (
        lambda: push_on(predictor(), x, y, x, eps=8, domain=(0.0, 1.0)),
        lambda: assess(predictor(), x, y, x, eps=8, domain=(0.0, 1.0)),
    ):
        with pytest.raises(InvalidInput, match="wider than the domain"):
            call()


def test_one_start_per_input():
    with pytest.raises(InvalidInput, match="one per input"):
        push_on(predictor(), inputs(4), [0, 1, 2, 0], inputs(3), eps=0.1)
