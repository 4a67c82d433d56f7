"""Does a certificate belong to the predictor and the points it is checked against?"""

from __future__ import annotations

import hashlib
import json

import numpy as np
from torch import Tensor

from certibayes.certificates.words import domain_in_words
from certibayes.checker._balls import balls_of
from certibayes.checker._claim import FLOATS, Claim
from certibayes.prediction import Predictor


def mismatches(claim: Claim, predictor: Predictor, x: Tensor) -> list[str]:
    """Return why a claim is not about this predictor and these points (B, ...)."""
    found = []
    if predictor_digest(predictor) != claim.certificate.digest:
        found.append("the certificate is about another predictor: the digest of network and weight samples differs")
    if inputs_digest(x) != claim.certificate.inputs_digest or len(x) != len(claim.labels):
        found.append("the certificate is about other points: their digest differs")
    if (dtype := str(predictor.dtype).removeprefix("torch.")) != claim.dtype:
        found.append(f"the certificate is about a {claim.dtype} program, and this one runs in {dtype}")
    if predictor.size != claim.certificate.samples:
        drawn = claim.certificate.samples
        found.append(f"the certificate speaks of {drawn} weight samples, and there are {predictor.size}")
    if len(claim.labels) and claim.lower.shape[1:] != (predictor.classes,):
        found.append(f"the certificate's bounds are not about {predictor.classes} classes")
    named = np.concatenate([claim.labels, claim.predicted])
    if len(named) and (named.min() < 0 or named.max() >= predictor.classes):
        found.append("the certificate names classes that the predictor does not have")
    if found:
        return found
    values = x.detach().cpu().to(predictor.dtype).double().numpy()
    balls = balls_of(claim, values)
    if balls is None:
        return [f"the certificate's radii of shape {claim.eps.shape}, or its domain, do not fit the points"]
    # Compared in the program's precision: float32(0.1) is a little more than 0.1 and still the domain's end.
    low, high = (end.astype(FLOATS[claim.dtype]) for end in (balls.low, balls.high))
    if (values < low).any() or (values > high).any():
        found.append(f"points lie outside the domain{domain_in_words(claim.certificate.domain)} that it states")
    return found


def predictor_digest(predictor: Predictor) -> str:
    """Compute the digest anew; the predictor's own may be remembered from before a change."""
    sha = hashlib.sha256(json.dumps(predictor.graph.to_json(), sort_keys=True).encode())
    for name, tensor in sorted(predictor.samples.items()):
        sha.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().numpy().tobytes())
    return sha.hexdigest()


def inputs_digest(x: Tensor) -> str:
    """Compute the digest of points, as certificates name them."""
    sha = hashlib.sha256(f"inputs:{x.dtype}:{tuple(x.shape)};".encode())
    sha.update(x.detach().cpu().numpy().tobytes())
    return sha.hexdigest()
