"""The names a certificate may use. One that uses others was not made by a version that this one knows."""

NORMS = {"linf": "l-infinity", "l2": "l2", "l1": "l1"}
"""The norms, in words."""

BOUNDS = ("ibp", "crown", "alpha-crown", "hull")
"""How networks can be bounded."""

INTERMEDIATES = ("ibp", "crown", "alpha-crown")
"""What linear bounds can know of the layers in between."""

METHODS = ("auto", "theorem1", "pairwise", "elided", "joint", "best")
"""How the bounds of several networks can be combined."""

ROUNDINGS = ("outward", "ideal")
"""Whether a proof is about the float program or about exact arithmetic."""

DTYPES = ("float32", "float64")
"""Precisions of predictors that can be certified."""

DEVICES = ("cpu", "cuda")
"""Devices whose arithmetic is known."""

VERSIONS = ("0.1.0",)
"""Versions of certibayes whose certificates can be read."""
