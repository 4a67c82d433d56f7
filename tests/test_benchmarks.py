"""What benchmarks keep and how they are compared; nothing here is timed."""

import dataclasses
import importlib
import io
import json
import sys

import pytest
from rich.console import Console

from benchmarks import __main__ as program
from benchmarks import profile, records, tables
from benchmarks.records import Figure, Record, ratio, seconds

MACHINE = {"device": "cpu", "gpu": None, "cpu": "a CPU", "cores": 2, "threads": 2, "torch": "2.0", "python": "3.11"}


def figure(*runs, bar=None):
    return Figure("x", runs, bar)


def record(**figures):
    return Record(MACHINE, {"steps": figures})


def test_a_figure_is_the_median_of_its_runs_and_its_noise_their_range():
    found = figure(1.0, 2.0, 1.1, 0.9, 1.0)
    assert found.value == 1.0 and found.noise == pytest.approx(1.1)
    assert figure(1.0, 2.0).noise is None


def test_runs_of_one_benchmark_are_joined():
    found = records.of_runs(
        [{"a": ratio(1.0, bar=2.0), "b": seconds(3.0)}, {"a": ratio(1.5, bar=2.0), "b": seconds(4)}]
    )
    assert found == {"a": Figure("x", (1.0, 1.5), 2.0), "b": Figure("s", (3.0, 4))}


def test_a_record_survives_the_disk_and_keeps_other_benchmarks_of_the_same_machine(tmp_path):
    path = tmp_path / "results" / "a.json"
    one, other = record(a=figure(1.0, bar=2.0)), Record(MACHINE, {"attack": {"b": seconds(0.1)}})
    records.write(one, path)
    assert records.read(path) == one
    records.write(other, path)
    assert records.read(path).benchmarks == one.benchmarks | other.benchmarks
    elsewhere = dataclasses.replace(other, machine={**MACHINE, "threads": 1})
    records.write(elsewhere, path)
    assert records.read(path) == elsewhere


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ({"gpu": "NVIDIA H200", "threads": 8}, "h200.json"),
        ({"gpu": "NVIDIA GeForce RTX 4090", "threads": 8}, "geforce-rtx-4090.json"),
        ({"gpu": None, "threads": 2}, "cpu-2-threads.json"),
    ],
)
def test_every_kind_of_machine_has_its_file(machine, name):
    assert records.path_of(machine) == records.RESULTS / name


@pytest.mark.parametrize("path", sorted(records.RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_what_is_kept_can_be_read(path):
    if path.name.startswith("profile-"):
        steps = json.loads(path.read_text())["steps"]
        assert all(set(step["parts"]) == set(profile.PARTS) for step in steps.values())
        assert all(sum(s["parts"].values()) == pytest.approx(s["seconds"]) for s in steps.values())
    else:
        kept = records.read(path)
        assert set(kept.benchmarks) <= set(program.BENCHMARKS) and records.path_of(kept.machine) == path


def test_this_machine_can_be_described():
    machine = records.machine("cpu")
    assert machine["cpu"] and machine["threads"] >= 1 and machine["gpu"] is None
    assert machine["torch"] in records.describe(machine)


@pytest.mark.parametrize("name", program.BENCHMARKS)
def test_every_benchmark_can_be_measured(name):
    assert callable(importlib.import_module(f"benchmarks.{name}").measure)


@pytest.mark.parametrize(
    ("committed", "now", "worse"),
    [
        (figure(1.0, 1.0, 1.1), figure(1.05), False),  # within the committed range
        (figure(1.0, 1.0, 1.1), figure(1.2), True),
        (figure(1.0, 1.0, 1.1), figure(1.2, 1.0, 1.3), False),  # within its own
        (figure(1.0, 1.0, 1.1), figure(0.5), False),
        (figure(1.0), figure(9.0), False),  # nothing is known of the noise
    ],
)
def test_worse_is_what_leaves_the_noise_upward(committed, now, worse, capsys):
    assert tables.is_worse(committed, now) is worse
    found = tables.print_comparison(record(a=committed), record(a=now, new=figure(1.0)))
    shown = capsys.readouterr().out
    assert found == (["steps: a"] if worse else []) and ("worse" in shown) is worse
    assert "not in the committed record: new" in shown


def test_figures_above_their_bars_are_named(capsys):
    found = tables.print_record(record(a=figure(2.0, bar=1.5), b=figure(1.0, bar=1.5), c=figure(9.0)))
    assert found == ["steps: a"]
    shown = capsys.readouterr().out
    assert "above" in shown and "holds" in shown and "1.50x" in shown


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (2.346, "x", "2.35x"), (0.5, "GB", "0.50 GB"), (2.0, "s", "2 s"), (0.0123, "s", "12.3 ms"),
        (3e-4, "s", "300 µs"), (4.56e-5, "s", "45.6 µs"), (1234.6, "s", "1235 s"), (None, "x", ""),
    ],
)  # fmt: skip
def test_figures_are_written_for_people(value, unit, words):
    assert tables.shown(value, unit) == words


def test_tables_keep_to_a_hundred_columns():
    name = "a very long name of a figure " * 5
    one = {name: figure(123.456, 99.0, 150.0, bar=100.0)}
    for table in (tables.table_of("steps", one), tables.comparison_of("steps", one, one)):
        console = Console(width=300, record=True, file=io.StringIO())
        console.print(table)
        assert max(map(len, console.export_text().splitlines())) <= tables.WIDTH


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, arguments)])
    program.main()


def test_a_kept_run_is_compared_with_another(monkeypatch, tmp_path, capsys):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    records.write(record(a=figure(1.0, 1.0, 1.01)), old)
    records.write(record(a=figure(1.5)), new)
    with pytest.raises(SystemExit, match="worse by more than the noise: steps: a"):
        run(monkeypatch, "--run", new, "--against", old)
    assert "+50%" in capsys.readouterr().out
    run(monkeypatch, "--run", old, "--against", new)


def test_several_runs_are_measured_and_kept(monkeypatch, tmp_path, capsys):
    values = iter([1.0, 3.0, 2.0])
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(
        importlib.import_module("benchmarks.attack"), "measure", lambda device: {"a": ratio(next(values), bar=1.5)}
    )
    with pytest.raises(SystemExit, match="above the bar: attack: a"):
        run(monkeypatch, "attack", "--runs", 3, "--save")
    (kept,) = tmp_path.glob("*.json")
    assert records.read(kept).benchmarks["attack"]["a"] == Figure("x", (1.0, 3.0, 2.0), 1.5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stepz"], "there is no benchmark stepz"),
        (["--runs", "0"], "--runs must be at least 1"),
        (["--run", "nowhere.json"], "nowhere.json does not exist"),
    ],
)
def test_wrong_arguments_are_explained(arguments, words, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, *arguments)
    assert words in capsys.readouterr().err


def test_without_a_kept_record_there_is_nothing_to_compare_with(monkeypatch, tmp_path):
    new = tmp_path / "new.json"
    records.write(record(a=figure(1.5)), new)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "empty")
    with pytest.raises(SystemExit, match="Nothing is kept of such a machine"):
        run(monkeypatch, "--run", new, "--compare")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "products"),
        ("sm90_xmma_gemm_f32f32_tn_n_tilesize128x128", "products"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm>", "products"),
        ("aten::mul", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("aten::normal_", "random numbers"),
        ("void at::native::distribution_elementwise_grid_stride_kernel<float, 4>", "random numbers"),
        ("void multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("aten::copy_", "copies"),
    ],
)
def test_kernels_are_told_apart_by_name(name, kind):
    assert profile.kind_of(name) == kind
