"""Ours beside the paper's: what its text states about a figure, decided by the rows of that figure.

``specs/claims.toml`` has the claims, with the paper's own words. A claim is decided for each recipe and network, by
means over seeds. What the paper does not state has no claim, and tables say so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.experiments.figure_spec import CLAIMS, read_toml

AGREES, HIGHER, LOWER, CONTRADICTED = "agrees", "higher", "lower", "contradicted"
TRIAL = "A trial run (--quick): small networks and few epochs."
UNKNOWN = "No reason is known."

Row = Mapping[str, Any]
Key = tuple[str, ...]

GROUPED = ("figure", "dataset", "method", "likelihood", "recipe", "network", "variation")
"""What rows that differ in their seed alone have in common."""


@dataclass(frozen=True)
class PaperClaim:
    """A claim of the paper, as its file has it; ``specs/claims.toml`` says what each key means."""

    says: str
    where: str
    figure: str
    dataset: str | list[str]
    measure: str
    is_: str
    value: float
    of: Mapping[str, list[str]] = field(default_factory=dict)
    against: Mapping[str, str] = field(default_factory=dict)
    against_measure: str = ""
    how: str = "value"
    methods: str = "each"
    within: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        allowed = {
            "is": (self.is_, ("about", "above", "below")),
            "how": (self.how, ("value", "difference", "ratio")),
            "methods": (self.methods, ("each", "mean", "largest")),
        }
        for key, (value, names) in allowed.items():
            if value not in names:
                raise InvalidInput(f"{key} of a claim must be one of {', '.join(names)}, got {value!r}.")
        if (self.how == "value") == bool(self.against or self.against_measure):
            raise InvalidInput(
                f"a claim about a difference or a ratio, and no other, has something against: {self.says}"
            )

    def is_about(self, key: Key) -> bool:
        """Tell whether rows of this group are among those that it is about."""
        axes = dict(zip(GROUPED, key, strict=True))
        datasets = [self.dataset] if isinstance(self.dataset, str) else self.dataset
        named = all(axes[axis] in values for axis, values in self.of.items())
        return axes["figure"] == self.figure and axes["dataset"] in datasets and named

    def decide(self, ours: float) -> str:
        """Say how a figure of ours relates to it."""
        if self.is_ == "about":
            # A hair more, since 0.78 - 0.75 is not 0.03 in floats.
            return AGREES if abs(ours - self.value) <= self.within + 1e-9 else HIGHER if ours > self.value else LOWER
        return AGREES if (ours > self.value if self.is_ == "above" else ours < self.value) else CONTRADICTED


@dataclass(frozen=True)
class Compared:
    """A claim, and what came out.

    Attributes:
        claim: the paper's.
        axes: of the posteriors that decide it.
        ours: the figure, a difference or a ratio of figures where the claim is about one.
        verdict: how it relates to the claim.
        reason: for a difference; empty where there is none.
    """

    claim: PaperClaim
    axes: Mapping[str, str]
    ours: float
    verdict: str
    reason: str


@dataclass(frozen=True)
class Mean:
    """A figure of posteriors that differ in their seed alone.

    Attributes:
        value: the mean.
        std: standard deviation over seeds; None for one.
        seeds: how many.
    """

    value: float
    std: float | None
    seeds: int


def read_claims() -> list[PaperClaim]:
    """Read the claims that come with the package."""
    return [_claim(values) for values in read_toml(CLAIMS)["claim"]]


def _claim(values: dict[str, Any]) -> PaperClaim:
    return PaperClaim(**{"is_" if key == "is" else key: value for key, value in values.items()})


def grouped(rows: Sequence[Row]) -> dict[Key, list[Row]]:
    """Group rows that differ in their seed alone; rows know their figure."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(str(row.get(axis, "")) for axis in GROUPED), []).append(row)
    return found


def mean_of(rows: Sequence[Row], measure: str) -> Mean | None:
    """Return the mean of a column over rows, or None where none has it."""
    values = [value for row in rows if isinstance(value := row.get(measure), (int, float))]
    if not values:
        return None
    return Mean(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def compare(rows: Sequence[Row], claims: Sequence[PaperClaim], trial: bool = False) -> list[Compared]:
    """Decide every claim that the rows can decide, for each recipe and network by itself.

    Args:
        rows: of all figures that are there.
        claims: the paper's.
        trial: whether figures are those of a trial run, which is then the reason for every difference.
    """
    groups = grouped(rows)
    return [found for claim in claims for found in _decided(claim, groups, trial)]


def _decided(claim: PaperClaim, groups: Mapping[Key, list[Row]], trial: bool) -> Iterator[Compared]:
    measured: dict[Key, float] = {}
    for key, rows in groups.items():
        if claim.is_about(key) and (ours := _ours(claim, key, rows, groups)) is not None:
            measured[key] = ours
    place = GROUPED.index("method")
    if claim.methods != "each":
        joined: dict[Key, list[float]] = {}
        for key, value in measured.items():
            joined.setdefault((*key[:place], "", *key[place + 1 :]), []).append(value)
        join = statistics.fmean if claim.methods == "mean" else max
        measured = {key: join(values) for key, values in joined.items()}
    for key, ours in measured.items():
        axes = dict(zip(GROUPED, key, strict=True))
        if claim.methods != "each":
            axes["method"] = f"{claim.methods} of methods"
        verdict = claim.decide(ours)
        reason = "" if verdict == AGREES else TRIAL if trial else claim.reason or UNKNOWN
        yield Compared(claim, axes, ours, verdict, reason)


def _ours(claim: PaperClaim, key: Key, rows: Sequence[Row], groups: Mapping[Key, list[Row]]) -> float | None:
    first = mean_of(rows, claim.measure)
    if first is None or claim.how == "value":
        return None if first is None else first.value
    other = tuple(claim.against.get(axis, own) for axis, own in zip(GROUPED, key, strict=True))
    second = mean_of(groups.get(other, []), claim.against_measure or claim.measure)
    if second is None:
        return None
    if claim.how == "difference":
        return first.value - second.value
    return first.value / second.value if second.value else None


def stated(claims: Sequence[PaperClaim], key: Key, measure: str) -> PaperClaim | None:
    """Return what the paper states about a column of these very posteriors; None where that is nothing."""
    for claim in claims:
        plain = claim.how == "value" and claim.methods == "each"
        if plain and claim.measure == measure and claim.is_about(key):
            return claim
    return None
