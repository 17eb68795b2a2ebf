"""A small folder of images, to try training on your own images: `python -m cirl.data.example my_images`.

Three digits of `tiny` in three of its styles, twelve images each, as `<domain>/<class>/<number>.png`.
"""

import sys
from pathlib import Path

from PIL import Image

from cirl.data import tiny
from cirl.errors import UserError

DOMAINS = ("plain", "photo", "print")
CLASSES = {0: "zero", 1: "one", 2: "two"}
EACH = 12


def write_example(place: str | Path) -> Path:
    """Write the 108 images into a new folder."""
    place = Path(place).expanduser()
    if place.exists() and any(place.iterdir()):
        raise UserError(f"{place} is not empty; name a new folder.")
    table = tiny.table()
    table = table[table["domain"].isin(DOMAINS) & table["label"].isin(CLASSES)]
    for (domain, label), part in table.groupby(["domain", "label"]):
        folder = place / domain / CLASSES[label]
        folder.mkdir(parents=True)
        for number, row in enumerate(part.head(EACH).itertuples()):
            Image.fromarray(tiny.render(row.shape, row.style)).save(folder / f"{number:02d}.png")
    return place


if __name__ == "__main__":
    write_example(sys.argv[1] if len(sys.argv) > 1 else "my_images")
