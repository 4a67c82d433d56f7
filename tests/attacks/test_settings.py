"""Attacks as objects and by name, their settings, and settings of ``attack`` itself."""

import math

import pytest
import torch
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
)
from certibayes.errors import InvalidInput

from .cases import BUDGET, Linear, predictor_of, rand


class TestSettings:
    def test_momentum_changes_the_path_and_still_succeeds(self):
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
        accuracies = found.robust_accuracy_after()
        assert accuracies["pgd"] == cb.attack(predictor, x, eps=0.3, method=quick).robust_accuracy > accuracies["pgd-2"]

    def test_an_attack_of_ones_own(self):
        class Corners(FGSM):
            """The corners of the ball, by chance."""

            name = "corners"

            def run(self, search, generator):
                index = search.unbroken()
                signs = torch.randn(search.region.center.shape, generator=generator).sign()
                search.evaluate(index, search.region.project(search.region.center + 9 * signs)[index])

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
            (lambda: Square(fraction=0.0), "fraction"),
            (lambda: Ensemble(()), "such as PGD"),
            (lambda: Ensemble(("pgd",)), r"attack\(method="),
            (lambda: as_attack("pgd", step=3), "no attack has a setting 'step'"),
        ],
    )
    def test_settings_that_make_no_sense(self, make, message):
        with pytest.raises(InvalidInput, match=message):
            make()
