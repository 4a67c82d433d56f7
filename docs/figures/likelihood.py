"""Draw what the robust likelihood charges for a bad worst case: likelihood.png."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

INK, FAINT = "#1f2933", "#8a94a0"
CURVES = ((1.0, "#8a94a0"), (0.5, "#e0a020"), (0.25, "#1a7f5a"), (0.0, "#c0392b"))
CLEAN = 0.98


def main() -> None:
    """Plot -log(lam * p_clean + (1 - lam) * p_worst) over p_worst for a fixed p_clean."""
    worst = torch.linspace(0.002, CLEAN, 500)
    figure, axes = plt.subplots(figsize=(6.4, 3.9), layout="constrained")
    for lam, color in CURVES:
        loss = -torch.log(lam * CLEAN + (1 - lam) * worst)
        name = {1.0: r"$\lambda = 1$: standard", 0.0: r"$\lambda = 0$: worst case only"}.get(lam, rf"$\lambda = {lam}$")
        axes.plot(worst, loss, color=color, linewidth=2.2, label=name)
        if 0.0 < lam < 1.0:
            axes.plot(0, -torch.log(torch.tensor(lam * CLEAN)), "o", color=color, clip_on=False, zorder=5)
    axes.annotate(r"at most $-\log \lambda$ more", (0.0, 1.41), xytext=(0.2, 2.3), color="#1a7f5a", fontsize=10,
                  arrowprops={"arrowstyle": "-", "color": "#1a7f5a", "shrinkB": 6})  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(0, 4), xlabel=r"$p_{worst}$, the bound on the label's probability over the ball",
             ylabel="loss of one example (nats)")  # fmt: skip
    axes.set_title(f"The clean prediction gives the label {CLEAN:g}", fontsize=11, color=INK)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=FAINT)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=120)


if __name__ == "__main__":
    main()
