"""The embedded benchmark: every image is `render(shape, style)`, with both factors known.

A `Shape` is the causal factor S of the paper's Figure 1 (which strokes make the digit), a `Style` the
non-causal factor U (how they come to be seen). The same shape under another domain's style is a true
intervention do(U), which no benchmark of photographs can offer.

Shapes are the handwritten digits inside scikit-learn and the fonts inside matplotlib; textures are the two
photographs inside scikit-learn. Nothing is downloaded. The four domains play the parts of Digits-DG's:
`plain` MNIST, `photo` MNIST-M, `street` SVHN, `print` SYN.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from sklearn import datasets

from cirl.data.benchmarks import PER_CLASS, VAL

SIZE = 32
DOMAINS = ("plain", "photo", "street", "print")
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmtt10"),
)


@dataclass(frozen=True)
class Shape:
    """S: the digit, drawn by a hand (`source` is an index of scikit-learn's digits) or a font (its name)."""

    digit: int
    source: int | str


@dataclass(frozen=True)
class Style:
    """U: everything about an image that does not make the digit."""

    domain: str
    ink: tuple[float, float, float]
    ground: tuple[float, float, float]
    texture: tuple[int, int, int] = (0, 0, 0)  # photograph, row, column
    grain: float = 0.0  # 0: plain ground, 1: the photograph itself
    invert: bool = False  # the stroke inverts the ground, as in MNIST-M, instead of covering it
    opacity: float = 1.0
    tilt: float = 0.0  # degrees
    scale: float = 1.0
    stretch: float = 1.0  # width over height
    shift: tuple[float, float] = (0.0, 0.0)
    neighbours: tuple[Shape, ...] = ()  # glyphs cut by the left and right edge
    clutter: tuple[tuple[float, ...], ...] = ()  # line segments: x0, y0, x1, y1, red, green, blue
    blur: float = 0.0
    noise: float = 0.0
    noise_seed: int = 0


def render(shape: Shape, style: Style) -> np.ndarray:
    """X = f(S, U): the image of a shape under a style, (SIZE, SIZE, 3) uint8."""
    ground = _ground(style)
    ink = np.array(style.ink)
    for side, neighbour in zip((-1, 1), style.neighbours, strict=False):
        mask = style.opacity * _placed(neighbour, style, side * 17.0)[..., None]
        ground = ground * (1 - mask) + ink * mask
    mask = style.opacity * _placed(shape, style)[..., None]
    image = np.abs(ground - mask) if style.invert else ground * (1 - mask) + ink * mask
    if style.blur:
        image = ndimage.gaussian_filter(image, (style.blur, style.blur, 0))
    if style.noise:
        image = image + style.noise * np.random.default_rng(style.noise_seed).standard_normal(image.shape)
    return (255 * image.clip(0, 1)).round().astype(np.uint8)


def sample_style(domain: str, rng: np.random.Generator) -> Style:
    """A random U of the domain."""
    return _STYLES[domain](rng)


def sample_shapes(domain: str, split: str, digit: int, seed: int = 0) -> list[Shape]:
    """The shapes of one class of a domain: handwriting for plain and photo, fonts for street and print.

    A handwritten shape appears in one domain and one split only; a font in one split only."""
    rng = np.random.default_rng((seed, digit))
    count = VAL if split == "val" else PER_CLASS - VAL
    if domain in ("plain", "photo"):
        hands = rng.permutation(np.flatnonzero(_digits()[1] == digit))
        start = (0 if domain == "plain" else PER_CLASS) + (0 if split == "val" else VAL)
        return [Shape(digit, int(i)) for i in hands[start : start + count]]
    fonts = np.random.default_rng(seed).permutation(FONTS)
    fonts = fonts[:4] if split == "val" else fonts[4:]
    return [Shape(digit, str(font)) for font in rng.choice(fonts, count)]


def table(seed: int = 0) -> pd.DataFrame:
    """The whole benchmark as rows: path, label, domain, split, shape, style."""
    rows = []
    for domain in DOMAINS:
        rng = np.random.default_rng((seed, DOMAINS.index(domain)))
        for split in ("train", "val"):
            for digit in range(10):
                for i, shape in enumerate(sample_shapes(domain, split, digit, seed)):
                    path = f"{domain}/{split}/{digit}/{i:03d}"
                    rows.append((path, digit, domain, split, shape, sample_style(domain, rng)))
    return pd.DataFrame(rows, columns=["path", "label", "domain", "split", "shape", "style"])


def _plain(rng):
    light = (rng.uniform(0.75, 1.0),) * 3
    return Style("plain", light, (0.0, 0.0, 0.0), **_pose(rng, tilt=12, scale=(0.85, 1.05), shift=1), blur=0.3)


def _photo(rng):
    black = (0.0, 0.0, 0.0)
    pose = _pose(rng, tilt=12, scale=(0.85, 1.05), shift=1)
    return Style("photo", black, black, _texture(rng), grain=1.0, invert=True, opacity=rng.uniform(0.6, 0.9), **pose)


def _street(rng):
    ground = rng.uniform(0.1, 0.9, 3)
    contrast = rng.uniform(0.2, 0.45) * (1 if ground.mean() < 0.5 else -1)
    ink = (ground + contrast + rng.uniform(-0.1, 0.1, 3)).clip(0, 1)
    beside = tuple(Shape(int(rng.integers(10)), str(rng.choice(FONTS))) for _ in range(2))
    pose = _pose(rng, tilt=15, scale=(0.9, 1.2), shift=2, stretch=(0.8, 1.05))
    grit = dict(blur=rng.uniform(0.6, 1.2), noise=rng.uniform(0.02, 0.06), noise_seed=int(rng.integers(2**31)))
    return Style(
        "street", tuple(ink), tuple(ground), _texture(rng), rng.uniform(0.0, 0.25), neighbours=beside, **pose, **grit
    )


def _print(rng):
    ground, ink = rng.uniform(0, 1, (2, 3))
    while abs(ground.mean() - ink.mean()) < 0.3:
        ground, ink = rng.uniform(0, 1, (2, 3))
    lines = tuple(tuple([*rng.uniform(0, SIZE, 4), *rng.uniform(0, 1, 3)]) for _ in range(rng.integers(1, 4)))
    pose = _pose(rng, tilt=15, scale=(0.8, 1.1), shift=2, stretch=(0.8, 1.2))
    return Style("print", tuple(ink), tuple(ground), _texture(rng), rng.uniform(0, 0.3), clutter=lines, **pose)


_STYLES = {"plain": _plain, "photo": _photo, "street": _street, "print": _print}


def _pose(rng, tilt, scale, shift, stretch=(0.9, 1.1)):
    return dict(
        tilt=rng.uniform(-tilt, tilt),
        scale=rng.uniform(*scale),
        stretch=rng.uniform(*stretch),
        shift=tuple(rng.uniform(-shift, shift, 2)),
    )


def _texture(rng):
    height, width = _photographs()[0].shape[:2]
    return int(rng.integers(2)), int(rng.integers(height - SIZE)), int(rng.integers(width - SIZE))


def _ground(style):
    photograph, row, column = style.texture
    image = np.ones((SIZE, SIZE, 3)) * style.ground
    if style.grain:
        patch = _photographs()[photograph][row : row + SIZE, column : column + SIZE]
        image = (1 - style.grain) * image + style.grain * patch
    if style.clutter:
        canvas = Image.fromarray((255 * image).astype(np.uint8))
        for *ends, red, green, blue in style.clutter:
            ImageDraw.Draw(canvas).line(ends, tuple(int(255 * c) for c in (red, green, blue)), width=2)
        image = np.asarray(canvas) / 255
    return image


def _placed(shape, style, beside=0.0):
    """The stencil of a shape, turned, scaled and shifted as the style says; `beside` moves a neighbour away."""
    angle = np.deg2rad(style.tilt)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = np.diag([1 / style.scale, 1 / (style.scale * style.stretch)]) @ turn
    middle = np.full(2, (SIZE - 1) / 2)
    offset = middle - matrix @ (middle + style.shift) - [0, beside / style.stretch]
    return ndimage.affine_transform(_stencil(shape), matrix, offset, order=1)


@cache
def _stencil(shape):
    """The strokes of a shape alone, (SIZE, SIZE) in [0, 1], 22 pixels high and centred."""
    if isinstance(shape.source, str):
        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        canvas = Image.new("L", (160, 160))
        font = ImageFont.truetype(folder / f"{shape.source}.ttf", 100)
        ImageDraw.Draw(canvas).text((40, 20), str(shape.digit), fill=255, font=font)
    else:
        strokes = ndimage.zoom(_digits()[0][shape.source] / 16, 10, order=3)
        canvas = Image.fromarray((255 * (2.5 * strokes - 0.75).clip(0, 1)).astype(np.uint8))
    glyph = canvas.crop(canvas.getbbox())
    width = max(3, round(22 * glyph.width / glyph.height))
    stencil = Image.new("L", (SIZE, SIZE))
    stencil.paste(glyph.resize((width, 22), Image.Resampling.BOX), ((SIZE - width) // 2, 5))
    return np.asarray(stencil) / 255


@lru_cache(maxsize=1)
def _digits():
    digits = datasets.load_digits()
    return digits.images, digits.target


@lru_cache(maxsize=1)
def _photographs():
    return [image / 255 for image in datasets.load_sample_images().images]
