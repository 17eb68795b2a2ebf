"""Drawings of the paper's Figures 1 to 3, with real images, spectra, representations, masks and a real C."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

CAUSAL, OTHER, INK = "#D55E00", "#0072B2", "#333333"
STRIP: dict[str, Any] = dict(cmap="viridis", aspect="auto")  # a vector as a row of colours


def structural_causal_model(ax: Axes) -> None:
    """Figure 1: X := f(S, U, V1), Y := h(S, V2); solid arrows cause, the dashed one is statistical dependence."""
    places = {"S": (0.2, 0.8), "U": (0.2, 0.2), "X": (0.8, 0.2), "Y": (0.8, 0.8)}
    words = {"S": "causal factors", "U": "non-causal factors", "X": "image", "Y": "label"}
    for name, place in places.items():
        color = {"S": CAUSAL, "U": OTHER}.get(name, INK)
        ax.add_patch(Circle(place, 0.1, fc="white", ec=color, lw=2.5))
        ax.text(*place, f"${name}$", ha="center", va="center", fontsize=20, color=color)
        above = 0.155 if place[1] > 0.5 else -0.155
        ax.text(place[0], place[1] + above, words[name], ha="center", va="center", fontsize=11, color=color)
    for start, end in (("S", "Y"), ("S", "X"), ("U", "X")):
        _arrow(ax, places[start], places[end], 30)
    (x, low), (_, high) = places["X"], places["Y"]
    dashes = np.linspace(low + 0.134, high - 0.134, 14).reshape(-1, 2)  # one by one: a dashed line frays its heads
    for start, end in dashes[1:-1]:
        ax.plot((x, x), (start, end), color="#888888", lw=1.8, solid_capstyle="butt")
    for end, start in (dashes[0], dashes[-1][::-1]):
        _arrow(ax, (x, start), (x, end), 0, color="#888888", lw=1.8)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.axis("off")


def properties(ax: Axes, ideal: bool) -> None:
    """Figure 2: factors that mix with U, overlap and leave gaps; or separated, independent and sufficient ones."""
    ax.add_patch(Circle((0.36, 0.5), 0.33, fc="#FBE6D8", ec=CAUSAL, lw=1.5, ls=(0, (4, 3))))
    ax.text(0.36, 0.87, "all causal information", ha="center", fontsize=10, color=CAUSAL)
    u = 0.93 if ideal else 0.75
    ax.add_patch(Circle((u, 0.5), 0.2, fc="#D6E8F4", ec=OTHER, lw=1.5))
    ax.text(u + (0 if ideal else 0.12), 0.5, "$U$", ha="center", va="center", fontsize=16, color=OTHER)
    angles = np.deg2rad([90, 162, 234, 306, 18])
    spots = [(0.36 + 0.19 * np.cos(a), 0.5 + 0.19 * np.sin(a)) for a in angles]
    labels = spots
    if not ideal:  # labels stand where no other circle's edge passes
        spots = [(0.27, 0.6), (0.4, 0.62), (0.34, 0.48), (0.56, 0.57), (0.62, 0.42)]
        labels = [(0.225, 0.625), (0.45, 0.655), (0.325, 0.43), (0.548, 0.622), (0.655, 0.38)]
    for number, (spot, label) in enumerate(zip(spots, labels, strict=True), 1):
        ax.add_patch(Circle(spot, 0.105, fc=CAUSAL, alpha=0.4, ec="none"))
        ax.add_patch(Circle(spot, 0.105, fc="none", ec=INK, lw=1))
        ax.text(*label, f"$s_{number}$", ha="center", va="center", fontsize=12)
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
    width, height = 15.6, 4.75
    figure = plt.figure(figsize=(0.76 * width, 0.76 * height))  # in inches, so that type is large beside the tiles
    canvas = figure.add_axes((0, 0, 1, 1))
    canvas.set(xlim=(0, width), ylim=(0, height))
    canvas.axis("off")
    for left, wide, name, color in (
        (0.1, 4.3, "causal intervention (Eqs. 4-6)", OTHER),
        (6.15, 2.75, "causal factorization (Eqs. 7-10)", "#007A33"),
        (9.1, 6.4, "adversarial mask (Eqs. 12-14)", CAUSAL),
    ):
        frame: dict[str, Any] = dict(
            boxstyle="round,pad=0.02,rounding_size=0.15", fc="none", ec=color, lw=1.5, ls=(0, (5, 3))
        )
        canvas.add_patch(FancyBboxPatch((left, 0.15), wide, 4.1, **frame))
        canvas.text(left + wide / 2, 4.4, name, ha="center", fontsize=11, color=color)
    _intervention(canvas, pictures)
    _generator(canvas)
    _factorization(canvas, pictures)
    _mask(canvas, pictures)
    return figure


def _intervention(canvas, pictures):
    for name, word, x, y, size in (
        ("x_o", "original $x^o$", 0.3, 3.0, 0.9),
        ("x_prime", "partner $x'$", 0.3, 0.45, 0.9),
        ("P", r"phase $\mathcal{P}$", 1.85, 2.28, 0.6),
        ("A_o", r"amplitude $\mathcal{A}$", 1.85, 1.35, 0.6),
        ("A_prime", r"amplitude $\mathcal{A}'$", 1.85, 0.45, 0.6),
        ("x_a", "augmented $x^a$", 3.25, 1.2, 0.9),
    ):
        _picture(canvas, pictures[name], word, (x, y, size, size))
    _arrow(canvas, (0.95, 3.0), (1.85, 2.6))
    _arrow(canvas, (0.5, 3.0), (1.85, 1.6))
    _arrow(canvas, (1.2, 0.75), (1.85, 0.75))
    for start in ((2.45, 2.55), (2.45, 1.65), (2.45, 0.75)):
        _arrow(canvas, start, (3.25, 1.65))
    mixed = r"$\hat{\mathcal{A}} = (1-\lambda)\mathcal{A} + \lambda\mathcal{A}'$"
    canvas.text(4.33, 0.5, mixed, ha="right", fontsize=9.5)


def _generator(canvas):
    _box(canvas, 4.75, 1.2, 1.05, 2.6, "generator\n$\\hat g$")
    _arrow(canvas, (1.2, 3.5), (4.75, 3.5))
    _arrow(canvas, (4.15, 1.65), (4.75, 1.65))
    _arrow(canvas, (5.8, 3.34), (6.35, 3.34))
    _arrow(canvas, (5.8, 1.4), (6.35, 0.95))


def _factorization(canvas, pictures):
    _picture(canvas, pictures["r_o"][None], "$r^o$", (6.35, 3.2, 1.0, 0.28), **STRIP)
    _picture(canvas, pictures["r_a"][None], "$r^a$", (6.35, 0.75, 1.0, 0.28), below=True, **STRIP)
    _picture(canvas, pictures["C"], "", (7.5, 1.6, 1.25, 1.25), cmap="magma", vmin=0, vmax=1)
    canvas.text(8.12, 2.92, "$|C|$ of a batch", ha="center", fontsize=9.5)
    canvas.text(8.02, 1.22, r"$\mathcal{L}_{Fac} = \frac{1}{2}\|C - I\|_F^2$", ha="center", fontsize=10)
    _arrow(canvas, (6.85, 3.2), (7.5, 2.5))
    _arrow(canvas, (6.85, 1.03), (7.5, 1.95))


def _mask(canvas, pictures):
    r, m = pictures["r_o"], pictures["m"]
    shades = STRIP | {"vmin": r.min(), "vmax": r.max()}
    _picture(canvas, r[None], "", (9.35, 2.05, 1.0, 0.28), **shades)
    canvas.text(9.28, 2.19, "$r$", ha="right", va="center", fontsize=12)
    for y, end in ((3.34, 2.36), (0.89, 2.02)):  # r^o and r^a, one after the other
        _arrow(canvas, (7.37, y), (9.6, end), 0, connectionstyle="angle,angleA=0,angleB=90,rad=0")
    _box(canvas, 10.7, 1.84, 0.9, 0.7, "masker\n$\\hat w$", CAUSAL)
    _arrow(canvas, (10.37, 2.19), (10.7, 2.19), color=CAUSAL)
    for vector, word, y_mask, y, head, loss in (
        (m, "m", 2.55, 3.2, "$\\hat h_1$", r"$\mathcal{L}^{sup}_{cls}$"),
        (1 - m, "1-m", 1.55, 0.75, "$\\hat h_2$", r"$\mathcal{L}^{inf}_{cls}$"),
    ):
        top, middle = y > y_mask, y + 0.14
        mask = STRIP | {"cmap": "magma", "vmin": 0, "vmax": 1}
        _picture(canvas, vector[None], "", (11.9, y_mask, 0.9, 0.28), **mask)
        canvas.text(12.88, y_mask + 0.14, f"${word}$", va="center", fontsize=12)
        _arrow(canvas, (11.6, 2.19), (11.9, y_mask + 0.14), color=CAUSAL)
        canvas.text(12.35, middle, "$\\odot$", ha="center", va="center", fontsize=15)
        _arrow(canvas, (12.35, y_mask + 0.28 * top), (12.35, middle + (-0.14 if top else 0.14)), 0, color=CAUSAL)
        start = (10.1, 2.35 if top else 2.03)
        bend = f"angle,angleA={90 if top else -90},angleB=0,rad=0"
        _arrow(canvas, start, (12.21, middle), 0, connectionstyle=bend)
        label = rf"$r \odot {word if top else '(1-m)'}$: {'superior' if top else 'inferior'}"
        _picture(canvas, (r * vector)[None], label, (12.75, y, 0.95, 0.28), below=not top, **shades)
        _arrow(canvas, (12.5, middle), (12.74, middle), 0)
        _box(canvas, 14.0, y - 0.11, 0.5, 0.5, head)
        _arrow(canvas, (13.72, middle), (14.0, middle), 0)
        _arrow(canvas, (14.5, middle), (14.75, middle), 0)
        canvas.text(14.8, middle, loss, va="center", fontsize=13)
    generators = r"$\hat g, \hat h_1, \hat h_2$: min $\mathcal{L}^{sup} + \mathcal{L}^{inf} + \tau \mathcal{L}_{Fac}$"
    canvas.text(15.42, 2.26, generators, ha="right", fontsize=9)
    masker = r"$\hat w$: min $\mathcal{L}^{sup} - \mathcal{L}^{inf}$"
    canvas.text(15.42, 1.93, masker, ha="right", fontsize=9, color=CAUSAL)


def _picture(canvas, image, word, box, below=False, **shown):
    """An image in a box (x, y, width, height) of the canvas, with a label above or below it."""
    x, y, width, height = box
    wide, high = canvas.get_xlim()[1], canvas.get_ylim()[1]
    ax = canvas.figure.add_axes((x / wide, y / high, width / wide, height / high))
    ax.imshow(image, **shown)
    ax.set(xticks=[], yticks=[])
    for side in ax.spines.values():
        side.set_visible(True)
    place, align = (y - 0.13, "top") if below else (y + height + 0.06, "bottom")
    canvas.text(x + width / 2, place, word, ha="center", va=align, fontsize=9.5)


def _box(canvas, x, y, width, height, word, color=INK):
    look: dict[str, Any] = dict(boxstyle="round,pad=0,rounding_size=0.1", fc="#F4F4F4", ec=color, lw=1.6)
    canvas.add_patch(FancyBboxPatch((x, y), width, height, **look))
    canvas.text(x + width / 2, y + height / 2, word, ha="center", va="center", fontsize=10.5, color=color)


def _arrow(ax, start, end, shrink=2, **more):
    style: dict[str, Any] = (
        dict(arrowstyle="-|>", mutation_scale=12, lw=1.5, color=INK, zorder=5, capstyle="butt") | more
    )
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=shrink, shrinkB=shrink, **style))
