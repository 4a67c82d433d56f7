"""Configuration: a spec from flags, a TOML file and a preset, in this order of rank, and back into a file."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from certibayes.errors import InvalidInput
from certibayes.experiments._toml import to_toml
from certibayes.experiments.presets import preset_values
from certibayes.experiments.settings import NONE, as_text, settings_of
from certibayes.experiments.spec import ALGORITHMS, TrainSpec, hyperparameters
from certibayes.support.files import write_atomically
from certibayes.support.names import nearest

TABLE = "settings"
"""The table, and the field of a spec, that holds an algorithm's hyperparameters."""


def read_config(path: Path) -> dict[str, Any]:
    """Read the fields of a spec, ``preset`` and the table ``[settings]`` from a TOML file.

    Raises:
        InvalidInput: it is not TOML, holds a key that no spec has, or a value of the wrong type.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}.") from None
    known = settings_of(TrainSpec)
    for key, value in values.items():
        if key == TABLE or key == "preset":
            kind, words = (dict, "a table") if key == TABLE else (str, "a name")
            if not isinstance(value, kind):
                raise InvalidInput(f"{key} in {path} must be {words}, got {value!r}.")
        elif key in known:
            known[key].check(value, f" in {path}")
        elif any(key in hyperparameters(name) for name in ALGORITHMS):
            raise InvalidInput(f"{key} in {path} belongs into the table [{TABLE}], with the other hyperparameters.")
        else:
            raise InvalidInput(f"{path} has an unknown setting {key!r}{nearest(key, [*known, 'preset', TABLE])}.")
    return values


def assemble(flags: dict[str, Any], config: dict[str, Any] | None = None) -> TrainSpec:
    """Make a spec: flags win over the file, which wins over the preset, which wins over defaults.

    Args:
        flags: fields of a spec that were given, ``preset``, and ``settings``.
        config: what ``read_config`` returned.
    """
    return TrainSpec(**_merged(flags, config, TrainSpec.algorithm))


def require_agreement(stored: TrainSpec, flags: dict[str, Any], config: dict[str, Any] | None, out: Path) -> None:
    """Raise if settings that were given anew are not those that the unfinished run in ``out`` was started with.

    Args:
        stored: the run's own settings.
        flags: as ``assemble`` takes them.
        config: likewise.
        out: directory of the run.
    """
    stored = stored.resolved()
    given = _merged(flags, config, stored.algorithm)
    given |= given.pop(TABLE)
    known = {**settings_of(TrainSpec), **hyperparameters(stored.algorithm)}
    has = {**stored.to_json(), **stored.settings}
    contradictions = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')} {as_text(value)}"
        if name not in known:
            contradictions.append(f"{flag}, which {stored.algorithm} does not know")
            continue
        asked = known[name].check(value)
        if asked is None and name not in stored.settings:
            left_out: Any = {name: None}
            asked = getattr(replace(stored, **left_out).resolved(), name)
        if asked != has[name]:
            contradictions.append(f"{flag}, but it was started with {as_text(has[name])}")
    if contradictions:
        raise InvalidInput(
            f"the unfinished run in {out} has other settings: {'; '.join(contradictions)}. Leave these out to go on "
            "with it as it was started, or begin anew with --overwrite in the place of --resume."
        )


def _merged(flags: dict[str, Any], config: dict[str, Any] | None, algorithm: str) -> dict[str, Any]:
    """Merge flags over the file over the preset, which is that of ``algorithm`` where none is named."""
    layers: list[dict[str, Any]] = [config or {}, flags]
    given = {**layers[0], **flags}
    if given.get("preset") is not None:
        layers.insert(0, preset_values(given["preset"], given.get("algorithm", algorithm)))
    values = {key: value for layer in layers for key, value in layer.items() if key != "preset"}
    values[TABLE] = {key: value for layer in layers for key, value in layer.get(TABLE, {}).items()}
    return values


def write_config(path: Path, spec: TrainSpec) -> None:
    """Write a spec, with every default filled in, so that ``read_config`` gives it back."""
    head = f"# To repeat this run: certibayes train --config {path.name} --out OTHER\n\n"
    write_atomically(path, (head + to_config(spec.resolved().to_json())).encode())


def to_config(values: dict[str, Any]) -> str:
    """Write settings, all or some of a spec's, as TOML."""
    values = _without_none(values)
    if TABLE in values:
        values[TABLE] = _without_none(values[TABLE])
    return to_toml(values)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: NONE if value is None else value for key, value in values.items()}
