"""Records as tables, at most 100 columns wide: alone beside their bars, and against the committed ones."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.records import Figure, Figures, Record, describe

WIDTH = 100


def shown(value: float | None, unit: str) -> str:
    """Write a figure for a person: ratios to a hundredth, times with three digits."""
    if value is None:
        return ""
    if unit == "x":
        return f"{value:.2f}x"
    if unit == "GB":
        return f"{value:.2f} GB"
    if unit == "%":
        return f"{value:.1f}%"
    scale, name = next(((s, n) for s, n in ((1, "s"), (1e3, "ms")) if value * s >= 1), (1e6, "µs"))
    return f"{scale * value:.3g} {name}" if scale * value < 100 else f"{scale * value:.0f} {name}"


def percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.0f}%"


def table_of(name: str, figures: Figures) -> Table:
    """Set every figure beside its bar and the range of its runs."""
    table = Table(title=name, title_justify="left", width=WIDTH)
    table.add_column("", ratio=1, overflow="fold")
    for column in ("measured", "range", "bar", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for key, figure in figures.items():
        mark = "" if figure.bar is None else "[red]above[/red]" if figure.above_its_bar else "[green]holds[/green]"
        bar = shown(figure.bar, figure.unit)
        table.add_row(key, shown(figure.value, figure.unit), percent(figure.noise), bar, mark)
    return table


def noise_of(committed: Figure, now: Figure) -> float | None:
    """The larger noise of two records, or nothing where neither has enough runs to tell."""
    known = [figure.noise for figure in (committed, now) if figure.noise is not None]
    return max(known) if known else None


def is_worse(committed: Figure, now: Figure) -> bool:
    """Whether a figure has grown by more than the noise; never where that is not known."""
    noise = noise_of(committed, now)
    return noise is not None and now.value / committed.value - 1 > noise


def comparison_of(name: str, committed: Figures, now: Figures) -> Table:
    """Set every figure that both records have beside its committed one."""
    table = Table(title=name, title_justify="left", width=WIDTH)
    table.add_column("", ratio=1, overflow="fold")
    for column in ("committed", "now", "change", "noise", "bar", ""):
        table.add_column(column, justify="right", no_wrap=True)
    for key, old in committed.items():
        if key in now:
            new = now[key]
            noise, change = noise_of(old, new), new.value / old.value - 1
            better = noise is not None and change < -noise
            mark = "[red]worse[/red]" if is_worse(old, new) else "[green]better[/green]" if better else ""
            cells = (shown(old.value, old.unit), shown(new.value, new.unit), f"{100 * change:+.0f}%")
            table.add_row(key, *cells, percent(noise), shown(new.bar, new.unit), mark)
    return table


def print_record(record: Record) -> list[str]:
    """Print a record and return the names of figures above their bars."""
    console = Console(width=WIDTH)
    console.print(describe(record.machine), highlight=False)
    for name, figures in record.benchmarks.items():
        console.print(table_of(name, figures))
    return [f"{n}: {key}" for n, figures in record.benchmarks.items() for key, f in figures.items() if f.above_its_bar]


def print_comparison(committed: Record, now: Record) -> list[str]:
    """Print two records side by side and return the names of figures that have become worse."""
    console = Console(width=WIDTH)
    console.print(f"committed: {describe(committed.machine)}\nnow:       {describe(now.machine)}", highlight=False)
    if committed.machine != now.machine:
        console.print("[yellow]The machines differ: compare ratios, not times.[/yellow]")
    worse = []
    for name, figures in now.benchmarks.items():
        known = committed.benchmarks.get(name, {})
        console.print(comparison_of(name, known, figures))
        worse += [f"{name}: {key}" for key, old in known.items() if key in figures and is_worse(old, figures[key])]
        unknown = [key for key in figures if key not in known]
        if unknown:
            console.print(f"not in the committed record: {', '.join(unknown)}", highlight=False)
    return worse
