"""Drawings of the paper's Figures 1 to 3; the notebook hands them real images, spectra, masks and a real C."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

CAUSAL, OTHER, INK = "#D55E00", "#0072B2", "#333333"


def structural_causal_model(ax: Axes) -> None:
    """Figure 1: X := f(S, U, V1), Y := h(S, V2); solid arrows cause, the dashed one is statistical dependence."""
    places = {"S": (0.2, 0.8), "U": (0.2, 0.2), "X": (0.8, 0.2), "Y": (0.8, 0.8)}
    words = {"S": "causal factors", "U": "non-causal factors", "X": "image", "Y": "label"}
    for name, place in places.items():
        color = {"S": CAUSAL, "U": OTHER}.get(name, INK)
        ax.add_patch(Circle(place, 0.1, fc="white", ec=color, lw=2.5))
        ax.text(*place, f"${name}$", ha="center", va="center", fontsize=20, color=color)
        above = 0.13 if place[1] > 0.5 else -0.13
        ax.text(place[0], place[1] + above, words[name], ha="center", va="center", fontsize=10, color=color)
    for start, end in (("S", "Y"), ("S", "X"), ("U", "X")):
        _arrow(ax, places[start], places[end], 28)
    _arrow(ax, places["X"], places["Y"], 28, linestyle=(0, (4, 3)), arrowstyle="<|-|>", color="#999999")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.axis("off")


def properties(ax: Axes, ideal: bool) -> None:
    """Figure 2: factors that mix with U, overlap and leave gaps; or separated, independent and sufficient ones."""
    ax.add_patch(Circle((0.36, 0.5), 0.33, fc="#FBE6D8", ec=CAUSAL, lw=1.5, ls=(0, (4, 3))))
    ax.text(0.36, 0.87, "all causal information", ha="center", fontsize=9, color=CAUSAL)
    u = 0.93 if ideal else 0.75
    ax.add_patch(Circle((u, 0.5), 0.2, fc="#D6E8F4", ec=OTHER, lw=1.5))
    ax.text(u + (0 if ideal else 0.06), 0.5, "$U$", ha="center", va="center", fontsize=16, color=OTHER)
    angles = np.deg2rad([90, 162, 234, 306, 18])
    spots = [(0.36 + 0.19 * np.cos(a), 0.5 + 0.19 * np.sin(a)) for a in angles]
    if not ideal:
        spots = [(0.3, 0.58), (0.4, 0.6), (0.36, 0.47), (0.57, 0.52), (0.62, 0.42)]
    for number, spot in enumerate(spots, 1):
        ax.add_patch(Circle(spot, 0.105, fc=CAUSAL, alpha=0.45, ec=INK, lw=1.2))
        ax.text(*spot, f"$s_{number}$", ha="center", va="center", fontsize=12)
    bad = ["mixed with $U$", "dependent on each other", "information missed"]
    good = ["separated from $U$", "jointly independent", "causally sufficient"]
    for line, word in enumerate(good if ideal else bad):
        text = ("✓ " if ideal else "✗ ") + word
        ax.text(0.02, 0.07 - 0.085 * line, text, fontsize=10, color="#007A33" if ideal else "#C00000")
    ax.set(xlim=(0, 1.15), ylim=(-0.15, 0.95), aspect="equal")
    ax.set_title("(b) ideal causal factors" if ideal else "(a) what training alone may give", fontsize=11)
    ax.axis("off")


def framework(pictures: dict[str, np.ndarray]) -> Figure:
    """Figure 3, from left to right: intervention, generator, factorization, adversarial mask.

    pictures: x_o, x_prime, x_a, A_o, A_prime, P (images); r_o, r_a, m (vectors); C (matrix)."""
    figure = plt.figure(figsize=(13, 5.4))
    canvas = figure.add_axes((0, 0, 1, 1))
    canvas.set(xlim=(0, 13), ylim=(0, 5.4))
    canvas.axis("off")
    for left, width, name, color in (
        (0.1, 4.3, "causal intervention (Eqs. 4-6)", OTHER),
        (6.15, 2.75, "causal factorization (Eqs. 7-10)", "#007A33"),
        (9.1, 3.8, "adversarial mask (Eqs. 12-14)", CAUSAL),
    ):
        canvas.add_patch(
            FancyBboxPatch(
                (left, 0.25),
                width,
                4.6,
                boxstyle="round,pad=0.02,rounding_size=0.15",
                fc="none",
                ec=color,
                lw=1.5,
                ls=(0, (5, 3)),
            )
        )
        canvas.text(left + width / 2, 5.05, name, ha="center", fontsize=12, color=color)
    _intervention(figure, canvas, pictures)
    _generator(canvas)
    _factorization(figure, canvas, pictures)
    _mask(figure, canvas, pictures)
    return figure


def _intervention(figure, canvas, pictures):
    for name, word, x, y in (
        ("x_o", "original $x^o$", 0.3, 3.3),
        ("x_prime", "partner $x'$", 0.3, 1.0),
        ("P", r"phase $\mathcal{P}$", 1.75, 3.3),
        ("A_o", r"amplitude $\mathcal{A}$", 1.75, 2.15),
        ("A_prime", r"amplitude $\mathcal{A}'$", 1.75, 1.0),
        ("x_a", "augmented $x^a$", 3.2, 2.15),
    ):
        _picture(figure, canvas, pictures[name], word, x, y, 0.9)
    for start, end in (((1.2, 3.75), (1.75, 3.75)), ((1.2, 3.6), (1.75, 2.75)), ((1.2, 1.45), (1.75, 1.45))):
        _arrow(canvas, start, end)
    for start in ((2.65, 3.6), (2.65, 2.6), (2.65, 1.6)):
        _arrow(canvas, start, (3.2, 2.6))
    canvas.text(
        3.65, 1.65, r"$\hat{\mathcal{A}} = (1-\lambda)\mathcal{A} + \lambda\mathcal{A}'$", ha="center", fontsize=9
    )


def _generator(canvas):
    _box(canvas, 4.75, 1.95, 1.0, 1.3, "generator\n$\\hat g$")
    _arrow(canvas, (1.2, 4.05), (4.95, 3.25), connectionstyle="arc3,rad=-0.18")
    _arrow(canvas, (4.1, 2.6), (4.75, 2.6))
    _arrow(canvas, (5.75, 2.75), (6.3, 3.65))
    _arrow(canvas, (5.75, 2.45), (6.3, 1.55))


def _factorization(figure, canvas, pictures):
    for name, word, y in (("r_o", "$r^o$", 3.5), ("r_a", "$r^a$", 1.4)):
        _picture(figure, canvas, pictures[name][None], word, 6.35, y, 1.0, 0.28, cmap="viridis", aspect="auto")
    _picture(figure, canvas, pictures["C"], "", 7.45, 1.95, 1.3, cmap="magma", vmin=0, vmax=1)
    canvas.text(8.1, 3.35, "$|C|$ of a real batch", ha="center", fontsize=9)
    canvas.text(8.1, 1.55, r"$\mathcal{L}_{Fac} = \frac{1}{2}\|C - I\|_F^2$", ha="center", fontsize=11)
    _arrow(canvas, (6.95, 3.45), (7.45, 2.85))
    _arrow(canvas, (6.95, 1.75), (7.45, 2.3))


def _mask(figure, canvas, pictures):
    _box(canvas, 9.25, 2.15, 0.9, 0.9, "masker\n$\\hat w$", CAUSAL)
    _arrow(canvas, (8.85, 2.6), (9.25, 2.6), color=CAUSAL)
    canvas.text(9.02, 2.72, "$r$", ha="center", fontsize=11, color=CAUSAL)
    for vector, word, y, head, loss in (
        (pictures["m"], "$m$: superior", 3.5, "$\\hat h_1$", r"$\mathcal{L}^{sup}_{cls}$"),
        (1 - pictures["m"], "$1-m$: inferior", 1.4, "$\\hat h_2$", r"$\mathcal{L}^{inf}_{cls}$"),
    ):
        _picture(figure, canvas, vector[None], word, 10.3, y, 1.0, 0.28, cmap="magma", aspect="auto", vmin=0, vmax=1)
        _arrow(canvas, (10.05, 2.6), (10.35, y + 0.14), color=CAUSAL)
        _box(canvas, 11.5, y - 0.1, 0.5, 0.5, head)
        _arrow(canvas, (11.3, y + 0.14), (11.5, y + 0.14))
        canvas.text(12.1, y + 0.14, loss, va="center", fontsize=12)
    canvas.text(
        11.55,
        2.75,
        r"$\hat g, \hat h_1, \hat h_2$: min $\mathcal{L}^{sup} + \mathcal{L}^{inf} + \tau \mathcal{L}_{Fac}$",
        ha="center",
        fontsize=8.5,
    )
    canvas.text(
        11.55, 2.4, r"$\hat w$: min $\mathcal{L}^{sup} - \mathcal{L}^{inf}$", ha="center", fontsize=8.5, color=CAUSAL
    )


def _picture(figure, canvas, image, word, x, y, width, height=None, **shown):
    height = height or width
    (left, bottom), (right, top) = (p / canvas.figure.get_size_inches() for p in ((x, y), (x + width, y + height)))
    ax = figure.add_axes((left, bottom, right - left, top - bottom))
    ax.imshow(image, **shown)
    ax.set(xticks=[], yticks=[])
    for side in ax.spines.values():
        side.set_visible(True)
    canvas.text(x + width / 2, y + height + 0.06, word, ha="center", va="bottom", fontsize=9)


def _box(canvas, x, y, width, height, word, color=INK):
    canvas.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.1", fc="#F4F4F4", ec=color, lw=1.6)
    )
    canvas.text(x + width / 2, y + height / 2, word, ha="center", va="center", fontsize=11, color=color)


def _arrow(ax, start, end, shrink=2, **more):
    style = dict(arrowstyle="-|>", mutation_scale=16, lw=1.6, color=INK) | more
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=shrink, shrinkB=shrink, **style))
