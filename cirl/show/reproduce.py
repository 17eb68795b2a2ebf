"""`make` trains a core of a study and compares it with the committed records: its progress and the agreement."""

import pandas as pd

from cirl import paths
from cirl.run.config import Run
from cirl.run.files import write
from cirl.show import tables
from cirl.study import catalog, records

TOLERANCE = 1.0  # points of accuracy; with one thread and the pinned instruction sets the weights are identical
START_UP = 6.0  # seconds of a run that its record does not count: kernel, imports, data


def agreement(runs: list[Run]) -> pd.DataFrame:
    """One row per run that was trained here and has a record: both accuracies, and whether the weights are equal."""
    here, _ = records.folder_records(runs)
    kept, _ = records.collected_records(runs)
    rows = []
    for name in (run.id for run in runs if run.id in here and run.id in kept):
        own, record = here[name], kept[name]
        identical = pd.notna(record.get("model_sha256")) and own["model_sha256"] == record["model_sha256"]
        accuracy = own["source_val.target"], record["source_val.target"]
        rows.append((name, *accuracy, accuracy[0] - accuracy[1], identical, own["cpu"], record.get("cpu")))
    return pd.DataFrame(rows, columns=["run", "here", "record", "difference", "identical", "cpu", "cpu of the record"])


def sentence(table: pd.DataFrame, expected: int) -> str:
    """`12 of 12 runs agree with the records, 11 bit for bit; largest difference 0.2 points.`"""
    agree = (table["difference"].abs() <= TOLERANCE).sum()
    text = f"{agree} of {expected} runs agree with the records within {TOLERANCE:g} point"
    text += f", {table['identical'].sum()} bit for bit"
    if len(table):
        text += f"; largest difference {table['difference'].abs().max():.1f} points"
    return text + (f"; {expected - len(table)} without a record" if len(table) < expected else "") + "."


def write_agreement(study: str) -> str:
    """Write figures/<study>/reproduced.md; return its first sentence."""
    runs = catalog.core(study)
    table = agreement(runs)
    said = sentence(table, len(runs))
    lines = [["run", "here", "record", "difference", "bit for bit", "CPU here", "CPU of the record"]]
    for row in table.itertuples(index=False):
        numbers = [f"{row.here:.1f}", f"{row.record:.1f}", f"{row.difference:+.1f}"]
        lines.append([f"`{row.run}`", *numbers, "yes" if row.identical else "no", str(row[5]), str(row[6])])
    write(paths.FIGURES / study / "reproduced.md", f"# Reproduced here\n\n{said}\n\n{tables.markdown(lines)}\n")
    return said


def progress(runs: list[Run], cores: int) -> str:
    """`5 of 12 runs done, about 7 min left`: from the recorded times, scaled by the speed of this machine so far."""
    here, _ = records.folder_records(runs)
    kept, _ = records.collected_records(runs)
    text = f"{len(here)} of {len(runs)} runs done"
    known = {name: record["seconds"] for name, record in kept.items()}
    if any(run.id not in known and run.id not in here for run in runs):
        return text
    both = [name for name in here if name in known]
    speed = sum(here[name]["seconds"] for name in both) / sum(known[name] for name in both) if both else 1.0
    left = sum(known[run.id] * speed + START_UP for run in runs if run.id not in here) / cores
    return f"{text}, about {max(1, round(left / 60))} min left"
