"""Figures of uncertainty: everything that is drawn lies inside the picture."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from certibayes.experiments import uncertainty_figures
from certibayes.experiments.uncertainty_figures import histogram_grid

FOUND = {"fractions": [0.5, 0.3, 0.2], "edges": [0.0, 0.5, 1.0, 1.5]}


@pytest.mark.parametrize("columns", [["robust"], ["standard", "robust"]], ids=len)
@pytest.mark.parametrize("rows", [["one"], ["one", "two"]], ids=len)
def test_the_legend_is_not_cut_off(rows, columns, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(uncertainty_figures, "save", lambda figure, path: figures.append(figure))
    sets = {"in": FOUND, "out": FOUND, "adversarial": FOUND}
    grid = {row: dict.fromkeys(columns, sets) for row in rows}
    histogram_grid(grid, tmp_path / "grid.png", xlabel="nats", title="digits (in) and shuffled (out)")
    (figure,) = figures
    FigureCanvasAgg(figure).draw()
    frame = figure.bbox
    (legend,) = figure.legends
    for part in (legend.get_window_extent(), *(text.get_window_extent() for text in legend.get_texts())):
        assert frame.x0 <= part.x0 and part.x1 <= frame.x1
        assert frame.y0 <= part.y0 and part.y1 <= frame.y1
