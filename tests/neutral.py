"""Show that a change of the code is neutral: every run of every study has the training digest that it had at a commit.

    python tests/neutral.py <commit>            list the runs whose digest differs
    python tests/neutral.py <commit> --train    train those that differ with both versions and compare the bits

A move of modules must list none. Where a rewrite moves digests, --train trains one run per pair of digests for two
epochs on generated images with the code of the commit and with the present code. It compares weights, optimizers and
history bit for bit, and the images of the embedded data set. Equal pairs are added to data/equal_code.csv. The exit
code is 1 if a run differs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
EQUAL = ROOT / "data" / "equal_code.csv"
DIGESTS = """
import json
from dataclasses import asdict
from cirl.run.digest import training_digest
from cirl.study.catalog import all_runs
from cirl.study.studies import STUDIES
runs = {run.id: run for study in STUDIES for run in all_runs(study, True)}
print(json.dumps({name: (training_digest(run), asdict(run)) for name, run in runs.items()}))
"""
TRAIN = """
import hashlib, io, json, sys
from dataclasses import fields
from cirl.run import machine
machine.pin()
import torch
from cirl.data import tiny
from cirl.data.batches import loaders
from cirl.methods import build
from cirl.run.checkpoint import train_epoch
from cirl.run.config import Run
torch.set_num_threads(1)
known = {field.name for field in fields(Run)}
for given in json.load(sys.stdin):
    digest = hashlib.sha256()
    if given.pop("embedded"):
        table = tiny.table()
        rows = table.iloc[::50]
        images = [tiny.render(shape, style) for shape, style in zip(rows["shape"], rows["style"])]
        digest.update(table.drop(columns=["shape", "style"]).to_csv().encode() + b"".join(map(bytes, images)))
    run = Run(**{name: value for name, value in given.items() if name in known})
    data = loaders(run)
    learner = build(run, len(data.classes))
    for epoch in range(learner.epochs):
        row = train_epoch(learner, data, epoch)
        digest.update(json.dumps({name: value for name, value in row.items() if name != "seconds"}).encode())
    state = io.BytesIO()
    torch.save(learner.state(), state)
    digest.update(state.getvalue())
    print(digest.hexdigest(), flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--train", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        old = Path(scratch, "old")
        old.mkdir()
        archive = subprocess.run(
            ["git", "-C", ROOT, "archive", options.commit, "cirl", "data/equal_code.csv"], capture_output=True
        )
        if archive.returncode:  # the list did not exist yet
            command = ["git", "-C", ROOT, "archive", options.commit, "cirl"]
            archive = subprocess.run(command, capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", old], input=archive.stdout, check=True)
        before, after = (json.loads(run_in(root, DIGESTS)) for root in (old, ROOT))
        moved = [name for name, (digest, _) in after.items() if name in before and before[name][0] != digest]
        print("\n".join(moved))
        print(f"{len(after)} runs, {len(moved)} differ, {len(after.keys() - before.keys())} are new")
        if not (moved and options.train):
            return int(bool(moved))
        pairs = {(before[name][0], after[name][0]): after[name][1] for name in moved}
        return compare(pairs, old, Path(scratch))


def compare(pairs: dict[tuple[str, str], dict], old: Path, scratch: Path) -> int:
    """Train one run of each pair with both versions; list the equal pairs."""
    images = generated_images(scratch / "images")
    runs = json.dumps([small(fields, images) for fields in pairs.values()])
    first, second = (run_in(root, TRAIN, runs).split() for root in (old, ROOT))
    equal = [pair for pair, one, other in zip(pairs, first, second, strict=True) if one == other]
    if not EQUAL.exists():
        EQUAL.write_text("before,after\n", encoding="utf-8")
    with EQUAL.open("a", encoding="utf-8") as file:
        file.writelines(f"{before},{after}\n" for before, after in equal)
    for pair, fields in pairs.items():
        print("equal " if pair in equal else "DIFFERENT", *pair, fields["dataset"], fields["method"], fields["recipe"])
    return int(len(equal) < len(pairs))


def small(fields: dict, images: Path) -> dict:
    """The run on generated images, for seconds; everything that chooses code stays."""
    size = dict(backbone="convnet32", weights="none", dim=None, epochs=2, batch_size=12, image_size=32, lr=0.001)
    embedded = fields["dataset"] == "tiny"
    return {**fields, **size, "dataset": f"folder:{images}", "target": "a", "schedule": "0.5", "embedded": embedded}


def generated_images(root: Path) -> Path:
    """Four domains, three classes, twelve images each."""
    rng = np.random.default_rng(0)
    for domain in "abcd":
        for name in "xyz":
            folder = root / domain / name
            folder.mkdir(parents=True)
            for i in range(12):
                Image.fromarray(rng.integers(256, size=(32, 32, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return root


def run_in(root: Path, code: str, given: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": str(root), "CIRL_ROOT": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, input=given, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
