"""What was proved, in words: the phrases that are common to all results, in one place.

Every function is pure: words come from the record and from nothing else, so whoever has the record can build them
again and compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from certibayes.certificates._names import NORMS
from certibayes.certificates.provenance import Provenance
from certibayes.regions import Domain


def number_in_words(value: float) -> str:
    """Write a number as briefly as possible without changing it."""
    return brief if float(brief := f"{value:g}") == value else repr(float(value))


def briefly(eps: float | Tensor, norm: str) -> str:
    """Name a radius and its norm in a few characters, for a repr."""
    radius = "radii given" if isinstance(eps, Tensor) else f"eps={eps:g}"
    return radius if norm == "linf" else f"{radius} in {norm}"


def domain_in_words(domain: Domain) -> str:
    """Say which values inputs can take; nothing where there is no limit."""
    if domain is None:
        return ""
    low, high = domain
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        return f" with values in the domain given for each feature ({_span(low, high)})"
    return f" with values in [{number_in_words(float(low))}, {number_in_words(float(high))}]"


def distance_in_words(eps: float | Tensor, norm: str) -> str:
    """Say how far inputs may be: one radius, one for each point (B,), or one for each input value."""
    if not isinstance(eps, Tensor):
        return f"{NORMS[norm]} distance {eps!r}"
    whose = "that point" if eps.dim() == 1 else "each input value"
    return f"the {NORMS[norm]} radius given for {whose} ({_span(eps, eps)})"


def ball_in_words(eps: float | Tensor, norm: str, domain: Domain) -> str:
    """Say which inputs are meant."""
    return f"every input{domain_in_words(domain)} within {distance_in_words(eps, norm)} of it"


def samples_in_words(provenance: Provenance) -> str:
    """Name the weight samples of a predictor."""
    plural = "s" if provenance.samples != 1 else ""
    return f"the {provenance.samples} fixed weight sample{plural} with digest sha256:{provenance.digest[:16]}"


def bounds_in_words(provenance: Provenance) -> str:
    """Say how networks were bounded, and the layers in between if not by intervals."""
    settings = provenance.settings
    if settings.get("intermediates", "ibp") == "ibp":
        return f"{settings['bounds']} bounds"
    return f"{settings['bounds']} bounds with {settings['intermediates']} intermediates"


def proof_in_words(provenance: Provenance, rounding: str) -> str:
    """Say how it was proved, and of which arithmetic."""
    method = f" and the method {provenance.settings['method']}" if "method" in provenance.settings else ""
    program = (
        f"the {provenance.dtype} program that evaluates it by direct sums (no TF32, no autocast), in any batch size "
        "and on any number of threads"
        if rounding == "outward"
        else "exact arithmetic alone; rounding of the program that runs is not accounted for"
    )
    return f"by {bounds_in_words(provenance)}{method}, for {program}"


def origin_in_words(provenance: Provenance) -> str:
    """Say what made the result, and the seed of the weight samples where it is known."""
    seed = "" if provenance.seed is None else f", weight samples drawn with seed {provenance.seed}"
    return f"Made by certibayes {provenance.version} on {provenance.device}{seed}."


def reasons_in_words(reasons: Mapping[int, str]) -> str:
    """Say of how many points nothing could be concluded, and why; nothing where there are none."""
    return "".join(
        f"Nothing could be concluded about {count} point{'s' if count != 1 else ''}: {reason}. "
        for reason, count in sorted(Counter(reasons.values()).items())
    )


def _span(low: Tensor, high: Tensor) -> str:
    return f"from {float(low.min())!r} to {float(high.max())!r}" if low.numel() else "for no points"
