"""Small predictors, their points, and the records of their certificates."""

import json

import torch

import certibayes as cb
from certibayes.attacks import PGD
from certibayes.certificates.certificate import parse
from certibayes.checker._arithmetic import Program
from certibayes.checker._claim import Claim
from certibayes.prediction import Predictor

from ..strategies import generator, inputs, make

DOMAIN = (0.0, 1.0)
FLOAT32 = Program(2.0**-24, 2.0**-126)
EXACT = Program(0.0, 2.0**-1022)


def small_predictor(name: str = "relu", samples: int = 3, dtype: torch.dtype = torch.float32) -> Predictor:
    modules = [make(name, 0) for _ in range(samples)]
    rng = generator(0)
    with torch.no_grad():
        for module in modules:
            for p in module.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=rng)).mul_(2.0)
    return cb.Samples.from_modules(modules).predictor(samples).to(dtype)


def points_for(name: str = "relu", count: int = 12) -> torch.Tensor:
    return inputs(name, count, 0).sigmoid()


def record_of(predictor: Predictor, x: torch.Tensor, labels: torch.Tensor | None = None, **settings) -> dict:
    result = cb.certify(predictor, x, labels, **{"eps": 0.02, "domain": DOMAIN, "method": "theorem1", **settings})
    return json.loads(json.dumps(result.to_json()))


def provenance(record: dict, **changes) -> dict:
    """The provenance of a record with other values, settings included."""
    own = record["provenance"]
    settings = {name: changes.pop(name, value) for name, value in own["settings"].items()}
    return {**own, "settings": settings, **changes}


def restated(record: dict, **changes) -> dict:
    """A forgery whose words follow: the statement is the one that the changed record gives."""
    forged = {**record, **changes}
    return {**forged, "statement": parse(forged).statement}


def claim_of(record: dict) -> Claim:
    return Claim.of(parse(record))


def attackable_points(eps: float = 0.2) -> tuple[Predictor, torch.Tensor, dict, torch.Tensor]:
    predictor, x = small_predictor(), points_for(count=30)
    success = cb.attack(predictor, x, eps=eps, domain=DOMAIN, method=PGD(steps=20, restarts=3)).success
    assert success.any()
    return predictor, x, record_of(predictor, x, eps=eps), success
