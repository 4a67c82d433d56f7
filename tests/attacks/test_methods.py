"""Every attack, in every norm: what it must find, what it must not do, and what an ensemble adds."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import certibayes as cb
from certibayes.attacks import (
    FGSM,
    GROUPS,
    METHODS,
    NORMS,
    PGD,
    AutoPGD,
    Ensemble,
    Square,
    as_attack,
    dlr_loss,
    margin_loss,
)
from certibayes.attacks.apgd import checkpoints
from certibayes.attacks.resampled import Resampled
from certibayes.attacks.search import Search
from certibayes.errors import InvalidInput
from certibayes.regions import InputRegion

from ..strategies import law, seeds

GRADIENT_METHODS = tuple(name for name in METHODS if name != "square")
BUDGET = {"steps": 8, "restarts": 2, "queries": 30}


def rand(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def posterior_of(hidden=(12,), seed=0):
    net = cb.networks.mlp(6, hidden, 3, seed=seed)
    mean = {name: 2.0 * p for name, p in net.named_parameters()}
    return cb.DiagonalGaussian(net, mean, {name: torch.full_like(p, 0.2) for name, p in mean.items()})


def predictor_of(hidden=(12,), seed=0):
    return posterior_of(hidden, seed).predictor(3, seed=seed)


class Linear(nn.Module):
    """log softmax of W x + b."""

    def __init__(self, classes, inputs, seed=0, scale=1.0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.weight = scale * torch.randn(classes, inputs, generator=g)
        # Every class is the best one somewhere around the middle of [0, 1].
        self.bias = -0.5 * self.weight.sum(-1)

    def forward(self, x):
        return torch.log_softmax(x.flatten(1) @ self.weight.T + self.bias, -1)


class NoGradients(nn.Module):
    """Fails where anyone asks for a gradient."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        assert not x.requires_grad and not torch.is_grad_enabled()
        return self.inner(x)


def worst_margins(model, x, y, eps, norm):
    """The least margin of a linear model in a ball without a domain: m - eps times the dual norm, per rival."""
    slopes = model.weight[y][:, None] - model.weight[None]
    margins = (slopes * x[:, None]).sum(-1) + model.bias[y][:, None] - model.bias[None]
    dual = {"linf": 1, "l2": 2, "l1": math.inf}[norm]
    least = margins - eps * slopes.norm(p=dual, dim=-1)
    return least.masked_fill(torch.arange(len(model.weight)) == y[:, None], math.inf).amin(-1)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", GRADIENT_METHODS)
def test_two_classes_fall_exactly_where_a_linear_model_can_be_broken(method, norm):
    model, x = Linear(2, 6), rand(150, 6)
    y = model(x).argmax(-1)
    eps = {"linf": 0.1, "l2": 0.3, "l1": 0.5}[norm]
    least = worst_margins(model, x, y, eps, norm)
    found = cb.attack(model, x, y, eps=eps, norm=norm, method=as_attack(method, steps=30, restarts=1))
    clear = least.abs() > 1e-4
    assert torch.equal(found.success[clear], least[clear] < 0)
    assert 0.05 < found.robust_accuracy < 0.95
    # Where it stands, the worst input is the one known in closed form.
    stands = ~found.success
    reached = -margin_loss(model(found.inputs), y)
    torch.testing.assert_close(reached[stands], least[stands], atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", ["pgd", "apgd-dlr", "ensemble"])
def test_many_classes_fall_where_a_linear_model_can_be_broken(method, norm):
    model, x = Linear(4, 6, seed=1), rand(150, 6)
    y = model(x).argmax(-1)
    eps = {"linf": 0.1, "l2": 0.25, "l1": 0.4}[norm]
    least = worst_margins(model, x, y, eps, norm)
    strong = as_attack(method, steps=30, restarts=3, queries=20)
    found = cb.attack(model, x, y, eps=eps, norm=norm, method=strong)
    assert not bool(found.success[least > 1e-4].any())
    missed = (~found.success & (least < -0.02)).double().mean()
    assert float(missed) < 0.05
    assert 0.05 < found.robust_accuracy < 0.95


@pytest.mark.parametrize("norm", NORMS)
def test_square_comes_near_the_optimum_without_a_gradient(norm):
    model, x = Linear(2, 6), rand(60, 6)
    y = model(x).argmax(-1)
    eps = {"linf": 0.1, "l2": 0.3, "l1": 0.5}[norm]
    least = worst_margins(model, x, y, eps, norm)
    found = cb.attack(NoGradients(model), x, y, eps=eps, norm=norm, method=Square(queries=300))
    assert not bool(found.success[least > 1e-4].any())
    broken = least < 0
    assert float(found.success[broken].double().mean()) > 0.8


@law(40)
@given(
    seed=seeds,
    method=st.sampled_from(list(METHODS)),
    norm=st.sampled_from(NORMS),
    eps=st.sampled_from([0.0, 1e-6, 0.05, 0.4, 3.0]),
    domain=st.sampled_from([None, (0.0, 1.0), (0.1, 0.9)]),
)
def test_what_is_found_is_inside_and_is_what_the_predictor_says(seed, method, norm, eps, domain):
    predictor = predictor_of(seed=seed)
    x, y = rand(10, 6, seed=seed), torch.arange(10) % 3
    if domain is not None:
        x = x.clamp(*domain)
        x[:4] = x[:4].round().clamp(*domain)
    quick = as_attack(method, **BUDGET)
    found = cb.attack(predictor, x, y, eps=eps, norm=norm, method=quick, domain=domain, seed=seed)
    assert bool((found.distance <= eps).all())
    assert torch.equal(found.distance, InputRegion.around(x, eps, norm, domain).distance(found.inputs))
    if domain is not None:
        assert torch.equal(found.inputs, found.inputs.clamp(*domain))
    assert torch.equal(found.predicted, predictor.predict(found.inputs))
    assert torch.equal(found.success, found.predicted != y)
    wrong = predictor.predict(x) != y
    assert bool(found.success[wrong].all()) and bool((found.broken_by[wrong] == 0).all())
    assert torch.equal(found.broken_by == -1, ~found.success)
    if eps == 0.0:
        assert torch.equal(found.inputs, x) and torch.equal(found.success, wrong)


@law(9)
@given(seed=seeds, norm=st.sampled_from(NORMS))
def test_an_ensemble_leaves_no_more_than_any_shorter_one(seed, norm):
    predictor = predictor_of(hidden=(20, 20), seed=seed)
    x = rand(40, 6, seed=seed)
    eps = {"linf": 0.1, "l2": 0.25, "l1": 0.5}[norm]
    settings = {"eps": eps, "norm": norm, "domain": (0.0, 1.0), "seed": seed}
    ensemble = as_attack("ensemble", **BUDGET)
    attacks = ensemble.attacks
    runs = [cb.attack(predictor, x, method=attacks[:k], **settings) for k in range(1, len(attacks) + 1)]
    for shorter, longer in itertools.pairwise(runs):
        assert not bool((shorter.success & ~longer.success).any())
    whole, alone = (cb.attack(predictor, x, method=method, **settings) for method in (ensemble, attacks[0]))
    assert torch.equal(whole.inputs, runs[-1].inputs)
    assert whole.robust_accuracy <= alone.robust_accuracy
    assert whole.robust_accuracy_after()["pgd"] == alone.robust_accuracy
    shares = list(whole.robust_accuracy_after().values())
    assert shares == sorted(shares, reverse=True) and shares[0] == 1.0 and shares[-1] == whole.robust_accuracy


@pytest.mark.parametrize("method", ["apgd-ce", "apgd-dlr"])
@pytest.mark.parametrize("norm", NORMS)
def test_more_restarts_leave_no_more(method, norm):
    predictor = predictor_of(hidden=(20, 20), seed=4)
    x = rand(60, 6)
    eps = {"linf": 0.1, "l2": 0.25, "l1": 0.5}[norm]
    runs = [
        cb.attack(predictor, x, eps=eps, norm=norm, method=as_attack(method, steps=4, restarts=restarts)).success
        for restarts in (1, 2, 4)
    ]
    for fewer, more in itertools.pairwise(runs):
        assert not bool((fewer & ~more).any())


@pytest.mark.parametrize("method", [*METHODS, "ensemble"])
def test_the_same_seed_gives_the_same_attack(method):
    predictor = predictor_of(hidden=(20, 20))
    x = rand(30, 6)
    state = torch.get_rng_state()
    one, same = (cb.attack(predictor, x, eps=0.05, method=as_attack(method, **BUDGET), seed=5).inputs for _ in range(2))
    assert torch.equal(one, same)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("method", ["pgd", "apgd-ce", "square"])
def test_another_seed_looks_elsewhere(method):
    predictor = predictor_of(hidden=(20, 20))
    x = rand(30, 6)
    one, other = (cb.attack(predictor, x, eps=0.05, method=as_attack(method, **BUDGET), seed=s).inputs for s in (0, 1))
    assert not torch.equal(one, other)


class TestMaskedGradients:
    """A predictor that is certain: log-probabilities 0 and -1000, so that cross-entropy has no gradient in floats."""

    model, x, eps = Linear(4, 6, seed=1, scale=20_000.0), rand(100, 6), 0.1
    y = model(x).argmax(-1)

    def standing(self, name, **settings):
        method = as_attack(name, steps=20, restarts=1, **settings)
        return cb.attack(self.model, self.x, self.y, eps=self.eps, method=method).robust_accuracy

    def test_cross_entropy_goes_nowhere_and_the_others_arrive(self):
        assert self.standing("pgd", losses=["cross-entropy"]) > 0.95
        assert self.standing("apgd-ce") > 0.95
        assert self.standing("pgd", losses=["margin"]) < 0.7
        assert self.standing("pgd", losses="dlr") < 0.7
        assert self.standing("apgd-dlr") < 0.7
        assert self.standing("square") < 0.7

    def test_the_ensemble_is_not_taken_in(self):
        assert self.standing("ensemble") < 0.6


class TestClasses:
    @pytest.mark.parametrize("method", [*METHODS, "ensemble"])
    @pytest.mark.parametrize("classes", [2, 3, 100])
    def test_any_number_of_classes(self, method, classes):
        model, x = Linear(classes, 6, scale=3.0), rand(30, 6)
        found = cb.attack(model, x, eps=0.2, method=as_attack(method, **BUDGET))
        assert 0.0 < float(found.success.double().mean()) <= 1.0

    @pytest.mark.parametrize("method", [*METHODS, "ensemble"])
    def test_a_single_class_is_refused(self, method):
        with pytest.raises(InvalidInput, match=r"one class.*logits are \(0, z\)"):
            cb.attack(Linear(1, 6), rand(5, 6), eps=0.5, method=method)


class TestLosses:
    def test_the_ratio_is_the_margin_over_best_less_third(self):
        scores = torch.tensor([[3.0, 1.0, 0.5, 0.0], [0.0, 4.0, 2.0, 1.0]])
        found = dlr_loss(scores, torch.tensor([0, 2]))
        assert found.tolist() == pytest.approx([-2.0 / 2.5, 2.0 / 3.0])

    @law(20)
    @given(seed=seeds, shift=st.floats(-5, 5), scale=st.floats(0.1, 50))
    def test_the_ratio_minds_neither_shift_nor_scale(self, seed, shift, scale):
        scores, y = rand(6, 5, seed=seed).double(), torch.arange(6) % 5
        torch.testing.assert_close(dlr_loss(scale * scores + shift, y), dlr_loss(scores, y))

    def test_with_two_classes_it_is_the_margin(self):
        scores, y = rand(6, 2), torch.arange(6) % 2
        assert torch.equal(dlr_loss(scores, y), margin_loss(scores, y))

    def test_equal_scores_have_finite_gradients(self):
        scores = torch.zeros(2, 4, requires_grad=True)
        dlr_loss(scores, torch.tensor([0, 1])).sum().backward()
        assert bool(torch.isfinite(scores.grad).all())


class TestAutoPGD:
    def test_checkpoints_are_those_of_the_paper(self):
        """p = 0, 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99."""
        assert checkpoints(100) == [0, 22, 41, 57, 70, 80, 87, 93, 99]

    @pytest.mark.parametrize("steps", [1, 2, 3, 10])
    def test_few_steps_are_enough_to_run(self, steps):
        found = cb.attack(predictor_of(), rand(5, 6), eps=0.1, method=as_attack("apgd", steps=steps, restarts=2))
        assert len(found.success) == 5

    def test_the_step_size_adapts_to_a_narrow_valley(self):
        """A curved loss whose maximum lies inside: fixed steps of 2 eps jump to and fro, halved ones come near."""

        def log_probabilities(x):
            low = -(((x - 0.13) * torch.linspace(1.0, 5.0, x.shape[-1])) ** 2).sum(-1)
            return torch.stack([torch.zeros_like(low), low - 1e-6], -1)

        x, y = torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)
        region = InputRegion.around(x, 0.5)
        search = Search(log_probabilities, region, y)
        AutoPGD("margin", steps=100, restarts=1).run(search, torch.Generator())
        assert float(margin_loss(log_probabilities(x), y)) < -0.5
        assert float(search.margin) > -0.005


class TestPosterior:
    """Weights drawn afresh at every call."""

    posterior = posterior_of()
    x = rand(60, 6)

    def test_the_fixed_predictor_judges(self):
        judge = self.posterior.predictor(20, seed=3)
        found = cb.attack(self.posterior, self.x, eps=0.15, draws=4, judge=judge, method=PGD(steps=10, restarts=2))
        assert torch.equal(found.labels, judge.predict(self.x))
        assert torch.equal(found.predicted, judge.predict(found.inputs))
        assert 0.0 < found.robust_accuracy < 1.0

    def test_without_a_judge_it_is_the_posteriors_own_predictor(self):
        found = cb.attack(self.posterior, self.x, eps=0.15, draws=4, method=PGD(steps=5, restarts=1), seed=7)
        judge = self.posterior.predictor(seed=7)
        assert torch.equal(found.predicted, judge.predict(found.inputs))
        again = cb.attack(self.posterior, self.x, eps=0.15, draws=4, method=PGD(steps=5, restarts=1), seed=7)
        assert torch.equal(found.inputs, again.inputs)

    def test_weights_are_new_at_every_call(self):
        guide = Resampled(self.posterior, 2, seed=0)
        one, other = guide(self.x), guide(self.x)
        assert not torch.equal(one, other)
        assert torch.equal(Resampled(self.posterior, 2, seed=0)(self.x), one)
        many = Resampled(self.posterior, 4000, seed=0)(self.x[:3]).exp()
        torch.testing.assert_close(
            many, self.posterior.predictor(4000, seed=9).probabilities(self.x[:3]), atol=0.02, rtol=0
        )

    def test_more_draws_come_nearer_to_attacking_the_judge_itself(self):
        """A guide of one draw has noisy gradients; of many, those of the predictive."""
        judge = self.posterior.predictor(200, seed=3)
        settings = {"eps": 0.1, "method": PGD(steps=10, restarts=1)}
        direct = cb.attack(judge, self.x, **settings).robust_accuracy
        many = cb.attack(self.posterior, self.x, draws=50, judge=judge, **settings).robust_accuracy
        assert abs(many - direct) <= 0.1

    def test_square_asks_the_judge_alone(self):
        judge = self.posterior.predictor(5, seed=3)
        found = cb.attack(self.posterior, self.x, eps=0.15, method=Square(queries=10), judge=judge)
        direct = cb.attack(judge, self.x, eps=0.15, method=Square(queries=10))
        assert torch.equal(found.inputs, direct.inputs)

    def test_what_cannot_be_attacked(self):
        with pytest.raises(InvalidInput, match="judges itself"):
            cb.attack(self.posterior.predictor(2), self.x, eps=0.1, judge=self.posterior.predictor(2))
        with pytest.raises(InvalidInput, match="module or a posterior"):
            cb.attack(lambda x: x, self.x, eps=0.1)


class TestSettings:
    def test_momentum_changes_the_way_and_still_arrives(self):
        model, x = Linear(2, 6), rand(60, 6)
        plain = cb.attack(model, x, eps=0.1, method=PGD(steps=30, restarts=1))
        kept = cb.attack(model, x, eps=0.1, method=PGD(steps=30, restarts=1, momentum=0.75))
        assert torch.equal(plain.success, kept.success)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"norm": "l3"}, "linf, l2, l1"),
            ({"method": "fgsn"}, "fgsm, pgd"),
            ({"method": []}, "method"),
            ({"draws": 0}, "draws"),
            ({"eps": torch.full((3,), 0.1)}, "eps has shape"),
            ({"eps": torch.tensor([-0.1])}, "eps"),
        ],
    )
    def test_nonsense_is_refused_with_the_way_out(self, settings, message):
        with pytest.raises(InvalidInput, match=message):
            cb.attack(Linear(2, 6), rand(4, 6), **{"eps": 0.1, **settings})

    def test_a_predictor_of_nans(self):
        model = Linear(2, 6)
        model.weight[0, 0] = math.nan
        with pytest.raises(InvalidInput, match="NaN"):
            cb.attack(model, rand(4, 6), eps=0.1)

    @pytest.mark.parametrize("norm", NORMS)
    def test_radii_of_their_own(self, norm):
        model, x = Linear(2, 6), rand(40, 6)
        eps = torch.cat([torch.zeros(20), torch.full((20,), 10.0)])
        found = cb.attack(model, x, eps=eps, norm=norm, method=PGD(steps=20))
        assert not bool(found.success[:20].any()) and bool(found.success[20:].all())

    @pytest.mark.parametrize("method", ["fgsm", "ensemble"])
    def test_progress_goes_up_and_ends_at_its_end(self, method):
        seen = []
        cb.attack(
            predictor_of(),
            rand(30, 6),
            eps=0.05,
            method=as_attack(method, **BUDGET),
            batch_size=10,
            progress=lambda *s: seen.append(s),
        )
        done = [d for d, _ in seen]
        assert done == sorted(done) and len({total for _, total in seen}) == 1
        assert seen[-1][0] == seen[-1][1] and len(set(done)) > 3

    def test_batches_have_streams_of_their_own(self):
        predictor = predictor_of(hidden=(20, 20))
        x = rand(30, 6)
        whole = cb.attack(
            predictor, torch.cat([x, x]), eps=0.05, method=as_attack("pgd", **BUDGET), batch_size=30
        ).inputs
        assert not torch.equal(whole[:30], whole[30:])

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("norm", NORMS)
    def test_images(self, method, norm):
        net = nn.Sequential(cb.networks.cnn_small((2, 12, 12), 4), nn.LogSoftmax(-1))
        quick = as_attack(method, **BUDGET)
        found = cb.attack(net, rand(3, 2, 12, 12), eps=0.3, norm=norm, method=quick, domain=(0.0, 1.0))
        assert found.inputs.shape == (3, 2, 12, 12)
        assert bool((found.distance <= 0.3).all())
        assert bool((found.distance > 0).all())  # it did try


class TestObjects:
    """Attacks as objects, and names as shortcuts for their defaults."""

    def test_names_are_shortcuts_for_defaults(self):
        objects = {
            "fgsm": FGSM(), "pgd": PGD(), "apgd-ce": AutoPGD(), "apgd-dlr": AutoPGD("dlr"), "square": Square(),
            "apgd": Ensemble((AutoPGD(), AutoPGD("dlr"))), "ensemble": Ensemble(),
        }  # fmt: skip
        assert {name: as_attack(name) for name in objects} == objects
        assert set(objects) == {*METHODS, *GROUPS}
        assert [attack.name for attack in METHODS.values()] == list(METHODS)

    def test_an_object_is_taken_as_it_is(self):
        chosen = PGD(steps=3)
        assert as_attack(chosen, steps=7) is chosen

    def test_settings_go_to_the_attacks_that_know_them(self):
        found = as_attack("ensemble", steps=7, queries=9, restarts=None)
        assert found.attacks == (PGD(7), AutoPGD("cross-entropy", 7), AutoPGD("dlr", 7), Square(9))
        assert as_attack("fgsm", steps=7) == FGSM()

    def test_lists_are_spelled_out_and_equal_attacks_run_once(self):
        assert as_attack(["fgsm", "ensemble", PGD()]).attacks == (FGSM(), *Ensemble().attacks)
        assert as_attack([["pgd"], Ensemble((PGD(), Square()))]).attacks == (PGD(), Square())

    def test_one_attack_twice_with_other_settings(self):
        predictor, x = predictor_of(), rand(40, 6)
        quick, slow = PGD(steps=1, restarts=1, step_size=0.5), PGD(steps=10, restarts=2)
        found = cb.attack(predictor, x, eps=0.3, method=[quick, slow, "fgsm"])
        assert found.methods == ("pgd", "pgd-2", "fgsm")
        shares = found.robust_accuracy_after()
        assert shares["pgd"] == cb.attack(predictor, x, eps=0.3, method=quick).robust_accuracy > shares["pgd-2"]

    def test_an_attack_of_ones_own(self):
        class Corners(FGSM):
            """The corners of the ball, by chance."""

            name = "corners"

            def run(self, search, generator):
                index = search.unbroken()
                signs = torch.randn(search.region.center.shape, generator=generator).sign()
                search.look(index, search.region.project(search.region.center + 9 * signs)[index])

        found = cb.attack(predictor_of(), rand(30, 6), eps=0.3, method=[Corners(), "pgd"])
        assert found.methods == ("corners", "pgd") and 0 < found.robust_accuracy_after()["corners"] < 1

    @pytest.mark.parametrize("kind", [FGSM, PGD, AutoPGD, Square, Ensemble])
    def test_a_class_instead_of_an_object(self, kind):
        with pytest.raises(InvalidInput, match=rf"method={kind.__name__}\(\)"):
            cb.attack(Linear(2, 6), rand(4, 6), eps=0.1, method=kind)

    @pytest.mark.parametrize(
        ("method", "message"),
        [
            (["pgd", "fgsn"], "fgsm, pgd.*'fgsn'"),
            (3, "got 3, a builtins.int"),
            (None, "got None"),
            (cb.PGD(), r"object of certibayes.attacks.*certibayes.likelihoods"),
            (cb.PGD, r"object of certibayes.attacks.*certibayes.likelihoods"),
        ],
    )
    def test_what_is_no_attack(self, method, message):
        with pytest.raises(InvalidInput, match=message):
            cb.attack(Linear(2, 6), rand(4, 6), eps=0.1, method=method)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: PGD(steps=0), "steps must be at least 1"),
            (lambda: PGD(restarts=0), "restarts must be at least 1"),
            (lambda: PGD(losses=["hinge"]), "cross-entropy, margin, dlr, got 'hinge'"),
            (lambda: PGD(losses=()), "got none"),
            (lambda: PGD(momentum=2.0), "momentum"),
            (lambda: PGD(step_size=0.0), "step_size"),
            (lambda: AutoPGD("ce"), "cross-entropy, margin, dlr"),
            (lambda: AutoPGD(steps=0), "steps must be at least 1"),
            (lambda: AutoPGD(restarts=0), "restarts must be at least 1"),
            (lambda: AutoPGD(rho=1.5), "rho"),
            (lambda: FGSM("hinge"), "loss"),
            (lambda: Square(queries=0), "queries must be at least 1"),
            (lambda: Square(share=0.0), "share"),
            (lambda: Ensemble(()), "such as PGD"),
            (lambda: Ensemble(("pgd",)), r"attack\(method="),
            (lambda: as_attack("pgd", step=3), "no attack has a setting 'step'"),
        ],
    )
    def test_settings_that_make_no_sense(self, make, message):
        with pytest.raises(InvalidInput, match=message):
            make()
