"""Seeds: one stream of random numbers for each purpose, all from the seed a user gives."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, *purpose: object) -> int:
    """Return a seed for one purpose.

    The same small seed is given to networks, fits and predictors alike; used as it is, the noise of a weight sample
    would come from the very numbers that initialized the network.
    """
    text = ":".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
