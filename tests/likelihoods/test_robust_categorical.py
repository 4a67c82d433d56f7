import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.likelihoods import Batch

from .cases import assert_same, case_of, conv_net, full_noise, images, labels, mlp_case

STANDARD_IN_DISGUISE = [
    pytest.param(cb.TwoPoint(eta=0.1, lam=1.0), id="lam=1"),
    pytest.param(cb.TwoPoint(eta=0.0, lam=0.25), id="eta=0"),
    pytest.param(cb.TwoPoint(eta=0.0, lam=0.0), id="delta_0"),
]

seeds = st.integers(0, 2**31)
radii = st.floats(0.0, 0.5)


@pytest.mark.parametrize("adversary", [cb.IBP(), cb.IBP(margins=True), cb.PGD(steps=2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("radius", STANDARD_IN_DISGUISE)
def test_without_a_radius_it_is_the_standard_likelihood_bit_for_bit(radius, dtype, adversary):
    case = mlp_case(8, 5, dtype=dtype)
    robust = cb.RobustCategorical(radius, adversary)
    assert torch.equal(case.log_likelihood(robust), case.log_likelihood(cb.Categorical()))
    standard = case.gradient(cb.Categorical())
    for name, gradient in case.gradient(robust).items():
        assert torch.equal(gradient, standard[name])


@pytest.mark.parametrize(
    "radius", [cb.Rayleigh(0.0), cb.Exponential(0.0, quadrature=8)], ids=["rayleigh", "exponential"]
)
def test_a_continuous_family_shrunk_to_zero_is_the_standard_likelihood(radius):
    case = mlp_case()
    found = case.log_likelihood(cb.RobustCategorical(radius))
    torch.testing.assert_close(found, case.log_likelihood(cb.Categorical()), rtol=0, atol=1e-6)


def test_the_standard_likelihood_is_minus_the_cross_entropy():
    case = mlp_case()
    logits = case.graph.evaluate(case.tensors, case.batch.inputs)
    expected = -functional.cross_entropy(logits, case.batch.targets, reduction="none")
    torch.testing.assert_close(case.log_likelihood(cb.Categorical()), expected)


@pytest.mark.parametrize("lam", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("adversary", [cb.IBP(), cb.IBP(margins=True), cb.PGD(steps=3)], ids=str)
def test_it_is_the_log_of_the_mixture_of_probabilities(adversary, lam):
    case = mlp_case(8, 4)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, lam), adversary)
    noise = full_noise(likelihood, case.batch)
    rows = torch.arange(len(case.batch.inputs))
    logits = case.graph.evaluate(case.tensors, case.batch.inputs)
    clean = torch.softmax(logits, -1)[rows, case.batch.targets]
    threat = case.threat(0.1, (0.0, 1.0), noise.starts)
    worst_logits = adversary.worst_logits(case.model, threat, case.batch.targets)
    worst = torch.softmax(worst_logits, -1)[rows, case.batch.targets]
    expected = torch.log(lam * clean + (1 - lam) * worst)
    torch.testing.assert_close(case.log_likelihood(likelihood, noise), expected, rtol=0, atol=1e-12)


def test_several_radii_are_mixed_with_their_weights():
    case = mlp_case()
    likelihood = cb.RobustCategorical(cb.Rayleigh(0.1, quadrature=4))
    noise = full_noise(likelihood, case.batch)
    terms = []
    for radius, log_weight in zip(noise.radii, noise.log_weights, strict=True):
        at_radius = cb.RobustCategorical(cb.TwoPoint(float(radius), lam=0.0))
        terms.append(log_weight.exp() * case.log_likelihood(at_radius).exp())
    expected = torch.stack(terms).sum(0).log()
    torch.testing.assert_close(case.log_likelihood(likelihood, noise), expected, rtol=0, atol=1e-6)


def interval_by_hand(case, eta):
    """Corner by corner, layer by layer, for Flatten, Linear, ReLU, Linear: obviously right."""
    lower = (case.batch.inputs - eta).clamp(min=0.0)
    upper = (case.batch.inputs + eta).clamp(max=1.0)
    for index, layer in enumerate(("1", "3")):
        weight, bias = case.params[f"{layer}.weight"], case.params[f"{layer}.bias"]
        positive, negative = weight.clamp(min=0), weight.clamp(max=0)
        lower, upper = (
            lower @ positive.T + upper @ negative.T + bias,
            upper @ positive.T + lower @ negative.T + bias,
        )
        if index == 0:
            lower, upper = lower.relu(), upper.relu()
    return lower, upper


def test_the_interval_worst_case_is_the_papers():
    case = mlp_case()
    lower, upper = interval_by_hand(case, 0.125)
    rows, y = torch.arange(len(case.batch.inputs)), case.batch.targets
    logits = upper.clone()
    logits[rows, y] = lower[rows, y]
    expected = functional.log_softmax(logits, -1)[rows, y]
    found = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(0.125, lam=0.0)))
    torch.testing.assert_close(found, expected)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, eta=radii)
def test_interval_is_below_attacked_is_below_clean(seed, eta):
    case = mlp_case(6, 5, size=4, seed=seed)
    p_eps = cb.TwoPoint(eta, lam=0.0)
    clean = case.log_likelihood(cb.Categorical())
    attacked = case.log_likelihood(cb.RobustCategorical(p_eps, cb.PGD(steps=4)))
    folded = case.log_likelihood(cb.RobustCategorical(p_eps, cb.IBP(margins=True)))
    boxed = case.log_likelihood(cb.RobustCategorical(p_eps, cb.IBP()))
    rounding = 1e-6 if eta == 0 else 1e-9
    assert (boxed <= folded + 1e-9).all()
    assert (folded <= attacked + 1e-9).all()
    assert (boxed <= clean + rounding).all()


def test_an_attack_from_the_input_itself_never_helps_a_linear_model():
    case = mlp_case(size=9)
    linear = case_of(torch.nn.Linear(6, 3), case.batch.inputs)
    for eta in (0.01, 0.1, 0.3):
        attacked = linear.log_likelihood(cb.RobustCategorical(cb.TwoPoint(eta, 0.0), cb.PGD(steps=8)))
        assert (attacked <= linear.log_likelihood(cb.Categorical())).all()


@settings(max_examples=25, deadline=None)
@given(seed=seeds, smaller=radii, larger=radii)
def test_a_larger_radius_never_raises_the_interval_likelihood(seed, smaller, larger):
    smaller, larger = sorted((smaller, larger))
    case = mlp_case(size=4, seed=seed)
    for adversary in (cb.IBP(), cb.IBP(margins=True)):
        low = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(larger, 0.25), adversary))
        high = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(smaller, 0.25), adversary))
        assert (low <= high + 1e-7).all()


def test_the_domain_cuts_the_ball_off():
    case = mlp_case()
    cut = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(0.4, 0.0), domain=(0.0, 1.0)))
    whole = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(0.4, 0.0), domain=None))
    assert (cut >= whole).all()
    assert (cut > whole).any()


def test_folding_the_last_layer_helps():
    case = mlp_case(10, 10)
    folded = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.IBP(margins=True)))
    boxed = case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(0.1, 0.0), cb.IBP()))
    assert (folded > boxed + 1e-6).all()


@pytest.mark.parametrize("adversary", [cb.IBP(), cb.IBP(margins=True), cb.PGD(steps=2)], ids=str)
def test_the_gradient_is_that_of_the_value(adversary):
    """Against central differences, in float64, along a random direction."""
    case = mlp_case(8, 5)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, 0.25), adversary)
    noise = full_noise(likelihood, case.batch)
    generator = torch.Generator().manual_seed(3)
    direction = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in case.params.items()}

    def value(t):
        moved = {name: p + t * direction[name] for name, p in case.params.items()}
        return float(case._replace(params=moved).log_likelihood(likelihood, noise).sum())

    expected = (value(1e-6) - value(-1e-6)) / 2e-6
    found = sum(float((g * direction[name]).sum()) for name, g in case.gradient(likelihood, noise).items())
    assert found == pytest.approx(expected, rel=1e-5)


def test_images_pass_through_convolutions():
    case = case_of(conv_net(), images(5, 1, 5, 5))
    values = [case.log_likelihood(cb.RobustCategorical(cb.TwoPoint(e, 0.0))) for e in (0.0, 0.05, 0.1)]
    assert (values[0] > values[1]).all()
    assert (values[1] > values[2]).all()


def test_an_impossible_label_has_no_probability_and_no_nan():
    """Logits hundreds apart must not become NaN, in value or gradient."""
    case = mlp_case(dtype=torch.float32)
    loud = case._replace(params={name: 300.0 * p for name, p in case.params.items()})
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.3, 0.25))
    assert torch.isfinite(loud.log_likelihood(likelihood)).all()
    assert all(torch.isfinite(g).all() for g in loud.gradient(likelihood).values())


def test_a_gradient_at_exactly_zero_radius_is_finite():
    """The first step of a ramp has radius 0."""
    case = mlp_case(8, 8)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1, 0.25))
    noise = likelihood.draw(0.0, case.batch, None)
    assert float(noise.radii[0]) == 0.0
    torch.testing.assert_close(
        case.log_likelihood(likelihood, noise), case.log_likelihood(cb.Categorical()), rtol=0, atol=1e-6
    )
    gradient = case.gradient(likelihood, noise)
    assert all(torch.isfinite(g).all() for g in gradient.values())


def test_the_same_noise_gives_the_same_bits():
    case = mlp_case(dtype=torch.float32)
    for likelihood in (
        cb.RobustCategorical(cb.Rayleigh(0.1)),
        cb.RobustCategorical(cb.TwoPoint(0.1), cb.PGD()),
    ):
        noise = full_noise(likelihood, case.batch)
        assert torch.equal(case.log_likelihood(likelihood, noise), case.log_likelihood(likelihood, noise))


def test_examples_do_not_depend_on_each_other():
    case = mlp_case(size=6)
    likelihood = cb.RobustCategorical(cb.TwoPoint(0.1), cb.PGD(steps=3))
    noise = full_noise(likelihood, case.batch)
    whole = case.log_likelihood(likelihood, noise)
    first = Batch(case.batch.inputs[:2], case.batch.targets[:2])
    part = case._replace(batch=first).log_likelihood(likelihood, noise._replace(starts=noise.starts[:2]))
    torch.testing.assert_close(part, whole[:2])


@pytest.mark.parametrize(
    "make", [cb.Categorical, lambda: cb.RobustCategorical(cb.TwoPoint(0.1))], ids=["plain", "robust"]
)
class TestValidation:
    def refuse(self, make, targets, message, inputs=None):
        case = mlp_case(size=4)
        inputs = case.batch.inputs if inputs is None else inputs
        with pytest.raises(InvalidInput, match=message):
            make().validate(case.graph, Batch(inputs, targets))

    def test_good_labels_pass(self, make):
        case = mlp_case(size=4)
        make().validate(case.graph, case.batch)

    def test_labels_beyond_the_classes(self, make):
        self.refuse(make, torch.tensor([0, 1, 2, 3]), "3 classes")

    def test_negative_labels(self, make):
        self.refuse(make, torch.tensor([0, 1, 2, -1]), "-1")

    def test_float_labels_are_pointed_to_regression(self, make):
        self.refuse(make, torch.zeros(4), "RobustGaussian")

    def test_one_hot_labels(self, make):
        self.refuse(make, torch.eye(3, dtype=torch.long), "shape")


def test_inputs_outside_the_domain_are_refused():
    case = mlp_case(size=4)
    outside = Batch(case.batch.inputs + 1.0, labels(4))
    with pytest.raises(InvalidInput, match="outside the domain"):
        cb.RobustCategorical(cb.TwoPoint(0.1)).validate(case.graph, outside)
    cb.RobustCategorical(cb.TwoPoint(0.1), domain=None).validate(case.graph, outside)


def test_an_inverted_domain_is_refused():
    case = mlp_case(size=4)
    with pytest.raises(InvalidInput, match="domain"):
        cb.RobustCategorical(cb.TwoPoint(0.1), domain=(1.0, 0.0)).validate(case.graph, case.batch)


def test_metadata_name_everything_that_matters():
    assert cb.RobustCategorical(cb.TwoPoint(0.11, 0.25), cb.IBP(margins=True), ramp=None).describe() == {
        "name": "RobustCategorical",
        "eps": None,
        "p_eps": {"name": "TwoPoint", "eta": 0.11, "lam": 0.25},
        "adversary": {"name": "IBP", "margins": True, "smoothing": 0.0},
        "lower_bound": True,
        "domain": [0.0, 1.0],
        "ramp": None,
    }


def test_the_mixture_weight_is_lam_not_one_minus_lam():
    """With a hopeless worst case only lam of the clean probability is left."""
    case = mlp_case()
    likelihood = cb.RobustCategorical(cb.TwoPoint(1e6, lam=0.125), domain=None)
    expected = case.log_likelihood(cb.Categorical()) + math.log(0.125)
    torch.testing.assert_close(case.log_likelihood(likelihood), expected, rtol=0, atol=1e-6)
    assert_same(case.gradient(likelihood), case.gradient(cb.Categorical()), rtol=1e-5, atol=1e-8)
