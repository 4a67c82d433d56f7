"""Certificates of many points, shard by shard: what is finished is on disk, and a restart goes on from there.

DIR/shards.json                  what the shards are about; another certificate cannot mix with them
DIR/shard-00000.safetensors      the certificate of the first points, written whole or not at all

A shard file carries the same description, so that a file which was moved here from elsewhere is noticed.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from certibayes._version import __version__
from certibayes.certificates import Certificate, Provenance, reading
from certibayes.certification._batch import memory_for
from certibayes.certification._border import asked_of, region_for
from certibayes.certification.certify import advice, certify, require_predictor
from certibayes.certification.methods import Method, as_method
from certibayes.errors import CorruptFile, InvalidInput, RunExists
from certibayes.prediction import Predictor
from certibayes.regions import Domain, as_radius, resolve_domain, take_domain
from certibayes.support.checks import inputs_of, labels_of, require_count
from certibayes.support.files import read_tensors, tensor_digest, write_atomically, write_tensors
from certibayes.support.progress import Report, reporting

DESCRIPTION = "shards.json"
KIND = "certificate shard"

MIN_SECONDS = 1e-3
"""What a shard has of the budget, at least, where earlier ones took more than theirs."""


def certify_in_shards(  # noqa: PLR0913 - public
    predictor: Predictor,
    x: Any,
    y: Any,
    directory: Path | str,
    *,
    eps: Any,
    norm: str = "linf",
    domain: Domain | Literal["predictor"] = "predictor",
    method: str | Method = "auto",
    shard: int = 500,
    rounding: str = "outward",
    batch_size: int | None = None,
    memory: int | None = None,
    progress: bool | Report = False,
) -> Certificate:
    """Certify points shard by shard, keeping every finished shard in ``directory``.

    Called again with the same arguments it reads what is finished and goes on with the rest.

    Args:
        predictor: see ``certify``.
        x: see ``certify``.
        y: see ``certify``.
        directory: made if it is missing; otherwise empty, or of an earlier call with the same arguments.
        eps: see ``certify``; here the same for all points, a number or (1, *shape).
        norm: see ``certify``.
        domain: see ``certify``; by default the predictor's own.
        method: see ``certify``; a budget is for all shards. Each has its fraction of what those before it left, also
            over several calls, so how far a shard came depends on the machine; what it proved or broke does not.
        shard: points per shard.
        rounding: see ``certify``.
        batch_size: see ``certify``.
        memory: see ``certify``.
        progress: True shows a bar on standard error, False nothing; a function is called with (points done, all
            points).

    Raises:
        InvalidInput: the points, labels or settings cannot be used.
        RunExists: the directory holds something else; the message names what differs.
        CorruptFile: a shard was changed after it was written.
    """
    parts, points = certify_shards(
        predictor, x, y, directory, eps=eps, norm=norm, domain=domain, method=method, shard=shard, rounding=rounding,
        batch_size=batch_size, memory=memory, progress=progress,
    )  # fmt: skip
    return join(parts, inputs_digest=points)


def certify_shards(  # noqa: PLR0913 - those of certify_in_shards
    predictor: Predictor,
    x: Any,
    y: Any,
    directory: Path | str,
    *,
    eps: Any,
    norm: str,
    domain: Domain | Literal["predictor"],
    method: str | Method,
    shard: int,
    rounding: str,
    batch_size: int | None,
    memory: int | None,
    progress: bool | Report = False,
    only: Collection[int] | None = None,
) -> tuple[list[Certificate], str]:
    """Certify all shards, or those that are asked for; return their certificates and the digest of all points.

    Several processes may do so at once in one directory, each some shards. See ``certify_in_shards``.
    """
    chosen = as_method(method)
    require_predictor(predictor)
    require_count(shard, "shard")
    x, y, eps = asked_of(predictor, x, y, eps)
    directory, x, radius = Path(directory), inputs_of(x, "the points"), as_radius(eps)
    domain = resolve_domain(domain, predictor)
    if len(x) == 0:
        raise InvalidInput("there are no points to certify.")
    if isinstance(radius, Tensor) and not (radius.dim() > 1 and len(radius) == 1):
        raise InvalidInput(
            "shards have one radius for all points: a number, or one for each input value, (1, *shape); got radii of "
            f"shape {tuple(radius.shape)}."
        )
    y = None if y is None else labels_of(y, predictor.classes, len(x))
    # Once for all shards, which belong to one certificate.
    chosen = chosen.decided(predictor, region_for(predictor, x, eps, norm, domain))
    settings: dict[str, Any] = {
        "eps": radius,
        "norm": norm,
        "rounding": rounding,
        "memory": memory_for(predictor, memory),
    }
    how = {"method": chosen.name, **{key: value for key, value in asdict(chosen).items() if value is not None}}
    about = _description(predictor, x, y, shard, {**settings, **how, "domain": domain})
    _require_own(directory, about)
    if only is not None and chosen.seconds is not None:
        raise InvalidInput("a budget is spent by one process after another; certify with several of them without one.")
    parts: list[Certificate] = []
    with reporting(progress, "certifying") as report:
        for index, start in enumerate(range(0, len(x), shard)):
            if only is not None and index not in only:
                continue
            file = directory / f"shard-{index:05d}.safetensors"
            found = _read(file, about, index, domain)
            if found is None:
                end = min(start + shard, len(x))
                labels = None if y is None else y[start:end]
                own = take_domain(domain, slice(start, end))
                found = certify(
                    predictor, x[start:end], labels,
                    domain=own,
                    method=_with_remaining_time(chosen, parts, (end - start) / (len(x) - start)),
                    batch_size=batch_size,
                    progress=_shifted(report, start, len(x)),
                    **settings,
                )  # fmt: skip
                # Those of all points, as the certificates of all shards will be one.
                found = replace(found, domain=domain, harder=advice(chosen, x, domain))
                # Only now: settings that cannot be used must not claim the directory.
                write_atomically(directory / DESCRIPTION, (json.dumps(about, indent=2) + "\n").encode())
                _write(file, found, about, index)
            parts.append(found)
            report(start + len(found), len(x))
    return parts, about["points"]


def join(parts: list[Certificate], inputs_digest: str) -> Certificate:
    """Join certificates of consecutive points.

    Args:
        parts: they differ in their points only.
        inputs_digest: digest of all points.
    """
    first = parts[0]
    spent = None if first.spent is None else sum(part.spent or 0.0 for part in parts)
    provenance = replace(first.provenance, inputs_digest=inputs_digest)
    starts = itertools.accumulate((len(part) for part in parts), initial=0)
    reasons = {
        start + index: reason
        for start, part in zip(starts, parts, strict=False)
        for index, reason in part.reasons.items()
    }
    joined: dict[str, Any] = {"provenance": provenance, "spent": spent, "reasons": reasons}
    for part in parts:
        if replace(part.provenance, inputs_digest=inputs_digest) != provenance:
            raise InvalidInput("certificates that differ in their provenance cannot be joined.")
    for name in (field.name for field in fields(Certificate) if field.name not in joined):
        values = [getattr(part, name) for part in parts]
        # Radii are the same for all points.
        if name != "eps" and isinstance(values[0], Tensor) and values[0].dim() > 0 and len(values[0]) == len(first):
            joined[name] = torch.cat([value.cpu() for value in values])
        elif any(not _same(value, values[0]) for value in values):
            raise InvalidInput(f"certificates that differ in {name} cannot be joined.")
    return replace(first, **joined)


def _with_remaining_time(method: Method, finished: list[Certificate], fraction: float) -> Method:
    """Return the method with a fraction of the seconds that finished shards have left."""
    if method.seconds is None:
        return method
    left = method.seconds - sum(part.spent or 0.0 for part in finished)
    return method.with_seconds(max(left * fraction, MIN_SECONDS))


def _description(
    predictor: Predictor, x: Tensor, y: Tensor | None, shard: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """What a shard depends on, as it reads back from JSON. Points bounded at once make no difference."""
    about = {
        "predictor": predictor.digest,
        "points": tensor_digest({"inputs": x}),
        "labels": None if y is None else tensor_digest({"labels": y}),
        "count": len(x),
        "shard": shard,
        "version": __version__,
        **{key: _plain(value) for key, value in settings.items()},
    }
    return dict(json.loads(json.dumps(about)))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return tensor_digest({"value": value}) if isinstance(value, Tensor) else value


def _require_own(directory: Path, about: dict[str, Any]) -> None:
    """Raise unless the directory is empty, not there yet, or about the same."""
    file = directory / DESCRIPTION
    # Listed before: another process may begin just now, with its description first.
    entries = list(directory.iterdir()) if directory.exists() else []
    if not file.exists():
        # A first write that was cut off may have left its partial file.
        if any(entry.suffix != ".partial" for entry in entries):
            raise RunExists(f"{directory} holds other files. Choose a directory that is empty or not there yet.")
        return
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise CorruptFile(f"{file} is not valid JSON ({error}).") from error
    _require_same(directory, about, found)


def _require_same(path: Path, about: dict[str, Any], found: Any) -> None:
    if not isinstance(found, dict):
        raise CorruptFile(f"{path} does not say what it is about.")
    differing = [
        f"{key} is {_short(found.get(key))} there and {_short(about.get(key))} here"
        for key in dict.fromkeys([*about, *found])
        if about.get(key) != found.get(key)
    ]
    if differing:
        raise RunExists(
            f"{path} belongs to another certificate: {'; '.join(differing)}. Choose another directory, or repeat the "
            "command that it belongs to."
        )


def _short(value: Any) -> str:
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == 64 else repr(value)


def _write(file: Path, part: Certificate, about: dict[str, Any], index: int) -> None:
    values = {field.name: getattr(part, field.name) for field in fields(Certificate)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    # The description names the domain, which may be large.
    apart = (*tensors, "provenance", "domain")
    rest = {name: reading.plain(value) for name, value in values.items() if name not in apart}
    record = {**rest, "provenance": part.provenance.to_json()}
    write_tensors(file, KIND, tensors, {"about": about, "index": index, "certificate": record})


def _read(file: Path, about: dict[str, Any], index: int, domain: Domain) -> Certificate | None:
    """Read a finished shard, or return None if it is not there."""
    if not file.exists():
        return None
    tensors, record = read_tensors(file, KIND)
    _require_same(file, about, record.get("about"))
    try:
        values: dict[str, Any] = {**record["certificate"], **tensors, "domain": domain}
        values["provenance"] = Provenance(**values["provenance"])
        values["reasons"] = {int(point): reason for point, reason in values["reasons"].items()}
        part = Certificate(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFile(f"{file} is incomplete ({error}). Delete it to certify its points again.") from error
    if record.get("index") != index:
        raise CorruptFile(f"{file} is another shard than its name says.")
    return part


def _shifted(report: Report, before: int, total: int) -> Report:
    return lambda done, _: report(before + done, total)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return all(_same(one, other) for one, other in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)
