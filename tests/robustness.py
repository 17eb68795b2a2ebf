"""How far a converged run of `tiny` moves when nothing but rounding changes: data/robustness.csv.

    python tests/robustness.py              (24 trainings, half an hour on two idle cores)
    python tests/robustness.py cirl-street  (the runs whose id contains this)
    python tests/robustness.py "" weights   (the change whose name contains this)

DeepAll, Mix and CIRL are trained on every target with seed 0: once with initial weights multiplied by 1 + 1e-6 N(0, 1),
once with two threads. Both leave the mathematics as it is. The table sets the accuracy beside that of the record, at
the epoch that source validation chooses and at the last.
"""

import sys

from cirl import paths
from cirl.run import machine

machine.pin()  # before torch is imported

import pandas as pd
import torch

from cirl.data.batches import loaders
from cirl.methods import build
from cirl.methods.base import Method
from cirl.run import checkpoint
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.run.files import write
from cirl.study import catalog

FILE = paths.DATA / "robustness.csv"
RULES = ("source_val", "last")
CHANGES = {"weights x (1 + 1e-6)": dict(size=1e-6, threads=1), "two threads": dict(size=0.0, threads=2)}


def perturb(method: Method, size: float) -> None:
    """Multiply every weight by 1 + size N(0, 1)."""
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in method.parameters():
            weight.mul_(1 + size * torch.randn(weight.shape, generator=noise))


def accuracy(run: Run, size: float, threads: int) -> dict[str, float]:
    """The target accuracy at the epoch that source validation chooses, and at the last."""
    torch.set_num_threads(threads)
    data = loaders(run)
    method = build(run, len(data.classes))
    if size:
        perturb(method, size)
    history = [checkpoint.train_epoch(method, data, epoch) for epoch in range(method.epochs)]
    return {rule: checkpoint.select(history, rule)["target"] for rule in RULES}


def main(pattern: str = "", changed: str = "") -> None:
    recorded = pd.read_csv(paths.DATA / "results.csv").set_index("id")
    for run in catalog.core("tiny"):
        if pattern not in run.id or not (run.cint and run.cfac and run.advm):
            continue
        for change, how in CHANGES.items():
            if changed not in change:
                continue
            row = dict(id=run.id, code=training_digest(run), change=change)
            row |= {f"{rule}.record": recorded.loc[run.id, f"{rule}.target"] for rule in RULES}
            known = pd.read_csv(FILE) if FILE.exists() else pd.DataFrame(columns=[*row])
            same = (known["id"] == row["id"]) & (known["code"] == row["code"]) & (known["change"] == change)
            if same.any():
                continue
            repeated = accuracy(run, **how)
            row |= {f"{rule}.repeated": repeated[rule] for rule in RULES}
            stale = (known["id"] == row["id"]) & (known["change"] == change)
            table = pd.concat([known[~stale], pd.DataFrame([row])]).sort_values(["change", "id"])
            write(FILE, table.to_csv(index=False, float_format="%.6g"))
            print(f"{run.id}, {change}: {row['last.record']:.1f} -> {row['last.repeated']:.1f}", flush=True)
    table = pd.read_csv(FILE)
    for rule in RULES:
        moves = (table[f"{rule}.repeated"] - table[f"{rule}.record"]).abs().groupby(table["change"])
        print(rule, moves.agg(["count", "mean", "max"]).round(2), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
