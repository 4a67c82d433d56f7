"""Adversaries between attack and bound: what they are at their ends, in what order they lie, and what is refused."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import certibayes as cb
from certibayes.errors import InvalidInput
from certibayes.experiments import TrainSpec
from certibayes.likelihoods import Batch, Model, per_example_gradients

from ..strategies import ball, law
from .cases import assert_same, case_of, conv_net, full_noise, images, mlp_case

WORST = cb.TwoPoint(0.1, 0.0)
MIXTURES = {"cc-ibp": cb.CCIBP, "mtl-ibp": cb.MTLIBP, "exp-ibp": cb.ExpIBP}
BOUNDS = {"intervals": cb.IBP(), "margins": cb.IBP(margins=True), "crown-ibp": cb.CROWNIBP()}
ATTACK = cb.PGD(steps=3)
BETWEEN = {
    "sabr": cb.SABR(0.3, ATTACK),
    "sabr without margins": cb.SABR(0.3, ATTACK, cb.IBP()),
    "cc-ibp": cb.CCIBP(0.3, ATTACK),
    "mtl-ibp": cb.MTLIBP(0.3, ATTACK),
    "exp-ibp": cb.ExpIBP(0.3, ATTACK, cb.IBP()),
}
every_mixture = pytest.mark.parametrize("kind", MIXTURES.values(), ids=MIXTURES)
every_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
every_one = pytest.mark.parametrize("adversary", BETWEEN.values(), ids=BETWEEN)
cases = pytest.mark.parametrize("net", ["mlp", "conv"])


def make_case(net, dtype=torch.float64):
    if net == "mlp":
        return mlp_case(8, 5, dtype=dtype)
    return case_of(conv_net(), images(5, 1, 6, 6, dtype=dtype))


def values(case, adversary, radius=WORST, domain=(0.0, 1.0)):
    likelihood = cb.RobustCategorical(radius, adversary, domain=domain)
    return case.log_likelihood(likelihood, full_noise(likelihood, case.batch))


class TestEnds:
    """An attack on one side, a bound on the other."""

    @cases
    @every_bound
    @pytest.mark.parametrize("radius", [WORST, cb.TwoPoint(0.1, 0.25)], ids=["worst case only", "two-point"])
    def test_a_box_of_the_whole_radius_is_the_bound(self, radius, bound, net):
        case = make_case(net)
        assert torch.equal(values(case, cb.SABR(1.0, ATTACK, bound), radius), values(case, bound, radius))

    @cases
    @every_bound
    def test_a_box_without_a_radius_is_the_attack(self, bound, net):
        case = make_case(net)
        found, expected = values(case, cb.SABR(0.0, ATTACK, bound)), values(case, ATTACK)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)

    @cases
    @pytest.mark.parametrize("bound", [cb.IBP(), cb.CROWNIBP()], ids=repr)
    def test_a_box_nearly_as_large_is_nearly_the_bound(self, bound, net):
        case = make_case(net)
        torch.testing.assert_close(values(case, cb.SABR(1 - 1e-9, ATTACK, bound)), values(case, bound))

    @cases
    @every_bound
    @every_mixture
    @pytest.mark.parametrize("radius", [WORST, cb.TwoPoint(0.1, 0.25)], ids=["worst case only", "two-point"])
    def test_a_mixture_of_one_part_is_that_part(self, radius, kind, bound, net):
        case = make_case(net)
        alone = values(case, kind(0.0, ATTACK, bound), radius), values(case, kind(1.0, ATTACK, bound), radius)
        # The likelihood of the bound alone may share products with its clean pass.
        torch.testing.assert_close(alone[0], values(case, ATTACK, radius), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(alone[1], values(case, bound, radius), rtol=1e-13, atol=1e-13)
        nearly = values(case, kind(1e-9, ATTACK, bound), radius), values(case, kind(1 - 1e-9, ATTACK, bound), radius)
        torch.testing.assert_close(nearly, alone)

    @every_one
    def test_without_a_radius_all_are_the_standard_likelihood(self, adversary):
        case = mlp_case(8, 5)
        torch.testing.assert_close(
            values(case, adversary, cb.TwoPoint(0.1, 1.0)), case.log_likelihood(cb.Categorical())
        )
        likelihood = cb.RobustCategorical(WORST, adversary)
        at_start = likelihood.draw(0.0, case.batch, torch.Generator())
        torch.testing.assert_close(case.log_likelihood(likelihood, at_start), case.log_likelihood(cb.Categorical()))


class TestFormulas:
    """What is mixed, written down once more."""

    def parts(self, case, bound):
        likelihood = cb.RobustCategorical(WORST, ATTACK)
        threat = case.threat(0.1, (0.0, 1.0), full_noise(likelihood, case.batch).starts)
        return [each.worst_logits(case.model, threat, case.batch.targets) for each in (ATTACK, bound)]

    @every_bound
    @pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
    def test_logits_losses_and_log_losses(self, alpha, bound):
        case = mlp_case(8, 5)
        attacked, bounded = self.parts(case, bound)
        rows, y = torch.arange(len(attacked)), case.batch.targets

        def loss(logits):
            return functional.cross_entropy(logits, y, reduction="none")

        differences = [logits - logits[rows, y][:, None] for logits in (attacked, bounded)]
        expected = {
            "cc-ibp": loss((1 - alpha) * differences[0] + alpha * differences[1]),
            "mtl-ibp": (1 - alpha) * loss(attacked) + alpha * loss(bounded),
            "exp-ibp": ((1 - alpha) * loss(attacked).log() + alpha * loss(bounded).log()).exp(),
        }
        for name, kind in MIXTURES.items():
            torch.testing.assert_close(-values(case, kind(alpha, ATTACK, bound)), expected[name])

    @every_mixture
    def test_the_clean_term_is_added_to_the_mixture(self, kind):
        case = mlp_case(8, 5)
        adversary = kind(0.3, ATTACK)
        clean, worst = case.log_likelihood(cb.Categorical()).exp(), values(case, adversary).exp()
        found = values(case, adversary, cb.TwoPoint(0.1, 0.25))
        torch.testing.assert_close(found, (0.25 * clean + 0.75 * worst).log())

    @every_mixture
    def test_the_attack_may_go_further_than_the_bound(self, kind):
        case = mlp_case(8, 5)
        found = values(case, kind(0.0, ATTACK, attack_scale=2.0))
        torch.testing.assert_close(found, values(case, ATTACK, cb.TwoPoint(0.2, 0.0)))
        assert torch.equal(values(case, kind(1.0, attack_scale=2.0)), values(case, kind(1.0)))


class TestOrder:
    """An attack is above, a bound below; what lies between falls as the bound gains weight."""

    weights = st.lists(st.floats(0.0, 1.0), min_size=2, max_size=4)

    @law(25)
    @given(seed=st.integers(0, 50), alphas=weights, bound=st.sampled_from(list(BOUNDS.values())))
    @pytest.mark.parametrize("kind", MIXTURES.values(), ids=MIXTURES)
    def test_a_mixture_falls_with_alpha(self, kind, seed, alphas, bound):
        case = mlp_case(6, 5, size=4, seed=seed)
        found = [values(case, kind(alpha, ATTACK, bound)) for alpha in (0.0, *sorted(alphas), 1.0)]
        for more, less in pairwise(found):
            assert bool((less <= more + 1e-9 * (1 + more.abs())).all())

    @law(40)
    @given(seed=st.integers(0, 50), alpha=st.floats(0.0, 1.0))
    def test_losses_are_mixed_hardest(self, seed, alpha):
        """log softmax is concave in the logits, and a geometric mean is never above an arithmetic one."""
        case = mlp_case(6, 5, size=4, seed=seed)
        logits, losses, logs = (values(case, kind(alpha, ATTACK)) for kind in MIXTURES.values())
        assert bool((losses <= logits + 1e-9).all() and (losses <= logs + 1e-9).all())

    @law(40)
    @given(seed=st.integers(0, 50), fraction=st.floats(0.0, 1.0))
    def test_a_small_box_lies_between_the_attack_and_the_whole_ball(self, seed, fraction):
        """It holds the attacked input and lies in the ball."""
        case = mlp_case(6, 5, size=4, seed=seed)
        small = values(case, cb.SABR(fraction, ATTACK))
        assert bool((values(case, cb.IBP(margins=True)) <= small + 1e-9).all())
        assert bool((small <= values(case, ATTACK) + 1e-9).all())


class TestSmallBox:
    @law(40)
    @given(
        seed=st.integers(0, 50),
        radius=st.floats(0.0, 1.5),
        fraction=st.floats(0.0, 1.0),
        domain=st.sampled_from([None, (0.0, 1.0), (0.2, 0.9)]),
    )
    def test_it_stays_in_ball_and_domain_and_holds_the_attacked_input(self, seed, radius, fraction, domain):
        case = mlp_case(6, size=5, seed=seed)
        if domain is not None:
            case = case._replace(batch=case.batch._replace(inputs=case.batch.inputs.clamp(*domain)))
        starts = 2 * images(5, 6, seed=seed + 1) - 1
        threat = case.threat(radius, domain, starts)
        box = cb.SABR(fraction, ATTACK).box(case.model, threat, case.batch.targets)
        lower, upper = ball(case.batch.inputs, radius, domain)
        room = 1e-12
        assert bool((box.radius >= 0).all() and (box.radius <= fraction * radius + room).all())
        assert bool((box.lower >= lower - room).all() and (box.upper <= upper + room).all())
        attacked = ATTACK.attacked(case.model, threat, case.batch.targets)
        assert bool((box.lower <= attacked + room).all() and (attacked <= box.upper + room).all())
        if domain is None:
            torch.testing.assert_close(box.radius, torch.full_like(box.radius, fraction * radius))

    def test_an_attacked_corner_is_a_corner_of_the_box(self):
        """A linear model of two classes is attacked at a corner of the ball; the box reaches into it from there."""
        case = case_of(torch.nn.Linear(6, 2), images(9, 6), torch.arange(9) % 2)
        threat = case.threat(0.1, None, torch.zeros_like(case.batch.inputs))
        weight, y = case.params["weight"], case.batch.targets
        direction = (weight[y] - weight[1 - y]).sign()
        box = cb.SABR(0.25).box(case.model, threat, y)
        torch.testing.assert_close(box.center, case.batch.inputs - 0.075 * direction)


class TestGradients:
    @every_one
    @cases
    def test_they_equal_differences_with_the_attack_fixed(self, net, adversary):
        """The attack is a constant, so the function that is differenced has its inputs, or its box, held fixed."""
        case = make_case(net)
        likelihood = cb.RobustCategorical(cb.TwoPoint(0.05, 0.25), adversary)
        noise = full_noise(likelihood, case.batch)
        attacked = ATTACK.attacked(case.model, case.threat(0.05, (0.0, 1.0), noise.starts), case.batch.targets)

        class Fixed(cb.PGD):
            def attacked(self, model, threat, labels):
                return attacked

        fixed = cb.RobustCategorical(likelihood.p_eps, type(adversary)(**{**vars(adversary), "attack": Fixed()}))
        names = list(case.params)

        def value(*weights):
            return fixed.log_likelihood(case.graph, dict(zip(names, weights, strict=True)), case.batch, noise)

        leaves = [p.clone().requires_grad_(True) for p in case.params.values()]
        assert torch.autograd.gradcheck(value, leaves, atol=1e-6)
        gradient = torch.autograd.grad(value(*leaves).sum(), leaves)
        assert_same(case.gradient(likelihood, noise), dict(zip(names, gradient, strict=True)))
        functional_gradient = torch.func.grad(
            lambda p: likelihood.log_likelihood(case.graph, {**case.buffers, **p}, case.batch, noise).sum()
        )(case.params)
        assert_same(functional_gradient, dict(zip(names, gradient, strict=True)))

    @every_one
    @cases
    def test_curvature_is_that_of_a_loop_over_examples(self, net, adversary):
        case = make_case(net)
        likelihood = cb.RobustCategorical(cb.TwoPoint(0.05), adversary)
        noise = full_noise(likelihood, case.batch)
        found = likelihood.value_grad_and_squares(case.graph, case.params, case.buffers, case.batch, noise)
        expected = per_example_gradients(likelihood, case.graph, case.params, case.buffers, case.batch, noise)
        torch.testing.assert_close(found.values, expected.values)
        assert_same(found.gradient, expected.gradient)
        assert_same(found.squares, expected.squares)
        squares = {name: torch.zeros_like(p) for name, p in case.params.items()}
        for i in range(len(case.batch.inputs)):
            one = case._replace(batch=Batch(*(part[i : i + 1] for part in case.batch)))
            own = noise._replace(starts=noise.starts[i : i + 1])
            squares = {name: squares[name] + g.square() for name, g in one.gradient(likelihood, own).items()}
        assert_same(found.squares, squares)

    @pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
    @every_one
    def test_they_are_finite_where_networks_are_certain(self, adversary, scale):
        """A loss that is rounded to 0 has no logarithm, and its square root no slope."""
        case = mlp_case(8, 5, dtype=torch.float32)
        last = [name for name in case.params if name.endswith("weight")][-1]
        sure = {**case.params, last: case.params[last] * scale}
        predicted = case.graph.evaluate(sure, case.batch.inputs).argmax(-1)
        case = case._replace(params=sure, batch=case.batch._replace(targets=predicted))
        if scale == 1e4:
            assert bool((case.log_likelihood(cb.Categorical()) == 0).any())
        likelihood = cb.RobustCategorical(cb.TwoPoint(0.01), adversary)
        assert bool(torch.isfinite(case.log_likelihood(likelihood)).all())
        for gradient in case.gradient(likelihood).values():
            assert bool(torch.isfinite(gradient).all())


class TestWords:
    @pytest.mark.parametrize(
        ("adversary", "bound", "uses"),
        [
            (cb.IBP(), True, True),
            (cb.CROWNIBP(), True, True),
            (cb.PGD(), False, False),
            (cb.SABR(0.5), False, True),
            (cb.SABR(0.0), False, False),
            (cb.SABR(1.0), True, True),
            (cb.MTLIBP(0.5), False, True),
            (cb.CCIBP(0.0), False, False),
            (cb.ExpIBP(1.0), True, True),
        ],
        ids=repr,
    )
    def test_a_likelihood_says_whether_it_is_a_lower_bound(self, adversary, bound, uses):
        likelihood = cb.RobustCategorical(eps=0.1, adversary=adversary)
        assert likelihood.describe()["lower_bound"] is bound
        assert likelihood.bounded is uses

    def test_settings_are_described_with_their_parts(self):
        assert cb.MTLIBP(0.01, cb.PGD(steps=8), attack_scale=2.1).describe() == {
            "name": "MTLIBP",
            "alpha": 0.01,
            "attack": {"name": "PGD", "steps": 8, "step_size": 0.25},
            "bound": {"name": "IBP", "margins": True, "smoothing": 0.0},
            "attack_scale": 2.1,
        }
        assert repr(cb.SABR(0.1, cb.PGD(steps=5))) == "SABR(box_fraction=0.1, attack=PGD(steps=5))"

    @every_one
    def test_the_bound_can_be_smoothed(self, adversary):
        case = mlp_case(8, 5)
        smooth = adversary.smoothed(0.1)
        assert smooth.bound == adversary.bound.smoothed(0.1)
        assert bool((values(case, smooth) < values(case, adversary)).all())


class TestRefused:
    @every_mixture
    @pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
    def test_a_weight_that_is_no_fraction(self, alpha, kind):
        with pytest.raises(InvalidInput, match="alpha is the weight of the bound"):
            kind(alpha)

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
    def test_a_box_larger_than_the_ball(self, fraction):
        with pytest.raises(InvalidInput, match="box_fraction"):
            cb.SABR(fraction)

    @pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
    def test_an_attack_that_goes_nowhere(self, scale):
        with pytest.raises(InvalidInput, match="attack_scale"):
            cb.MTLIBP(attack_scale=scale)

    @pytest.mark.parametrize("kind", [cb.SABR, *MIXTURES.values()])
    def test_parts_that_are_something_else(self, kind):
        with pytest.raises(InvalidInput, match=rf"attack of {kind.__name__} is an adversary PGD"):
            kind(attack=cb.attacks.PGD())
        for odd in (cb.PGD(), "ibp", None, cb.SABR(), cb.MTLIBP(1.0)):
            with pytest.raises(InvalidInput, match=rf"bound of {kind.__name__} is an adversary that bounds"):
                kind(bound=odd)

    @every_one
    def test_regression(self, adversary):
        with pytest.raises(InvalidInput, match=r"for classification.*take IBP\(\), CROWNIBP\(\) or PGD\(\)"):
            cb.RobustGaussian(eps=0.1, adversary=adversary)


class TestCommandLine:
    @pytest.mark.parametrize(
        ("settings", "adversary"),
        [
            ({"likelihood": "sabr"}, cb.SABR()),
            ({"likelihood": "sabr", "box_fraction": 0.1, "attack_steps": 5}, cb.SABR(0.1, cb.PGD(steps=5))),
            ({"likelihood": "cc-ibp", "alpha": 0.1}, cb.CCIBP(0.1)),
            ({"likelihood": "exp-ibp", "alpha": 0.0}, cb.ExpIBP(0.0)),
            (
                {"likelihood": "mtl-ibp", "attack_steps": 8, "attack_step_size": 0.25, "attack_scale": 2.1},
                cb.MTLIBP(attack=cb.PGD(steps=8), attack_scale=2.1),
            ),
            ({"likelihood": "pgd", "attack_steps": 3}, cb.PGD(steps=3)),
            ({"likelihood": "ibp", "margins": True}, cb.IBP(margins=True)),
            ({"likelihood": "crown-ibp"}, cb.CROWNIBP()),
        ],
    )
    def test_settings_make_the_adversary(self, settings, adversary):
        spec = TrainSpec(**settings)
        assert spec.make_adversary() == adversary
        assert spec.resolved().make_adversary() == adversary
        assert TrainSpec.from_json(spec.resolved().to_json()) == spec.resolved()
        assert spec.make_likelihood(cb.data.load("digits")).adversary == adversary

    def test_defaults_are_filled_in(self):
        spec = TrainSpec(likelihood="mtl-ibp").resolved()
        assert (spec.alpha, spec.attack_steps, spec.attack_step_size, spec.attack_scale) == (0.5, 1, 10.0, 1.0)
        assert spec.box_fraction is None

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"likelihood": "ibp", "alpha": 0.5}, "ibp has no alpha; cc-ibp, mtl-ibp, exp-ibp have"),
            ({"likelihood": "mtl-ibp", "box_fraction": 0.5}, "mtl-ibp has no box_fraction; sabr"),
            ({"likelihood": "crown-ibp", "attack_steps": 5}, "crown-ibp has no attack_steps; pgd, sabr"),
            ({"likelihood": "standard", "attack_steps": 5}, "standard has no attack_steps"),
            ({"likelihood": "mtl-ibp", "alpha": 2.0}, "alpha"),
            ({"likelihood": "sabr", "attack_steps": 0}, "steps"),
        ],
    )
    def test_settings_that_do_not_fit(self, settings, reason):
        with pytest.raises(InvalidInput, match=reason):
            TrainSpec(**settings)

    def test_regression_is_refused_before_anything_is_trained(self):
        with pytest.raises(InvalidInput, match="for classification"):
            TrainSpec(dataset="diabetes", likelihood="mtl-ibp").make_likelihood(cb.data.load("diabetes"))


def test_no_network_is_changed_by_an_attack():
    """Weights are constants to the search, also where they ask for gradients."""
    case = mlp_case(8, 5)
    leaves = {name: p.clone().requires_grad_(True) for name, p in case.params.items()}
    threat = case.threat(0.1, (0.0, 1.0), torch.zeros_like(case.batch.inputs))
    box = cb.SABR(0.5).box(Model(case.graph, leaves), threat, case.batch.targets)
    assert not box.center.requires_grad and not box.radius.requires_grad
