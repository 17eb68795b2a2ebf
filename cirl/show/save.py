"""Write an item into `figures/<study>/`: picture or table, numbers, and a markdown file with caption and provenance."""

import io
import re
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from cirl import paths
from cirl.data.benchmarks import NOTES
from cirl.run.files import write
from cirl.show import claims, tables
from cirl.study import catalog, records, studies

FINDING = "What we found: "
DEFAULTS = {
    "rule": "source_val",
    "part": "target",
    "draws": 10,
    "per_class": 1,
    "limit": 2000,
    "seed": 0,
    "target": "street",
}  # of the notebooks
DEFAULTS |= {"dataset": "tiny", "repetitions": 7, "large": True, "threads": 1}  # of the benchmark
MOST_NAMED = 8  # rows in a sentence
LINES = list[list[str]]


class Output:
    """Where a notebook writes: `figures/<study>/`, or beside it if one of its parameters is not the default."""

    def __init__(self, study: str, **parameters: object):
        self.study, self.label = study, studies.study(study).label
        changed = [f"{name}={value}" for name, value in parameters.items() if value != DEFAULTS[name]]
        self.is_default = not changed
        beside = re.sub(r"[^\w=.,-]+", "_", ",".join(changed))
        self.folder: Path = paths.FIGURES / study if self.is_default else paths.FIGURES / "looks" / study / beside

    def numbers(self, stem: str, table: pd.DataFrame) -> None:
        """Write an item's numbers as csv."""
        write(self.folder / f"{stem}.csv", table.to_csv(index=False, float_format="%.6g"))

    def save(
        self,
        stem: str,
        content: Figure | LINES | tuple[Figure, LINES],
        caption: str,
        runs: pd.DataFrame | None = None,
        finding: str | None = None,
    ) -> str:
        """Write an item: a figure as png and pdf, a table (lines of cells) as tex, and the md, which is returned.

        The md holds caption, study, epochs and seeds, coverage, the table, the finding (one line that the README may
        quote), the verdicts on the paper's claims, and the missing runs."""
        parts = [f"**{catalog.title(stem, self.study)}.** {caption}", self._basis(stem, runs)]
        for part in content if isinstance(content, tuple) else (content,):
            if isinstance(part, Figure):
                for kind in ("png", "pdf"):
                    write(self.folder / f"{stem}.{kind}", _picture(part, kind))
            else:
                write(self.folder / f"{stem}.tex", tables.latex(part))
                parts.append(tables.markdown(part))
        parts += [FINDING + known] if finding and (known := known_part(finding)) else []
        verdicts = claims.verdicts(self.study, stem) if self.is_default else []
        parts += ["\n".join(f"- {verdict}" for verdict in verdicts)] if verdicts else []
        if runs is not None and runs.attrs["missing"]:
            parts.append(missing_runs(runs.attrs["missing"]))
        text = "\n\n".join(parts) + "\n"
        write(self.folder / f"{stem}.md", text)
        return text

    def _basis(self, stem, runs):
        """What an item rests on: study, epochs and seeds, coverage, notes on the data."""
        sentences = [f"Study `{self.study}`: {self.label}."]
        expected = catalog.expected(stem, self.study)
        seeds = {run.seed for run in expected} if runs is None else {*runs["seed"]}
        sentences += [training({run.epochs for run in expected}, seeds)] if expected and seeds else []
        if runs is not None:
            digests = runs["data_digest"].unique() if "data_digest" in runs else []
            sentences += [
                f"{escaped(records.coverage(runs))}.",
                *(NOTES[digest] for digest in digests if digest in NOTES),
                *_not_converged(catalog.rows(stem, self.study)),
            ]
        return " ".join(sentences)


def _not_converged(rows):
    """A sentence that names the rows which have not converged, or counts them if they are many; none if all have."""
    moving = records.not_converged(records.load_history(rows))
    if not moving:
        return []
    named = ", ".join(f"{row} ({change:+.1f})" for row, change in moving.items())
    named = named if len(moving) <= MOST_NAMED else f"{len(moving)} of {len(rows)} rows"
    why = f"source validation still changes by {records.CONVERGED:g} points or more over the last fifth of the epochs"
    return [f"Not converged ({why}): {named}."]


def missing_runs(ids: list[str]) -> str:
    """A folded list: dozens of run ids would hide what there is."""
    lines = "\n".join(f"- `{run}`" for run in ids)
    return f"<details><summary>Missing runs ({len(ids)})</summary>\n\n{lines}\n\n</details>"


def training(epochs: set[int], seeds: set[int]) -> str:
    """`5 epochs, seeds 0, 1 and 2.`"""
    return f"{_listed(sorted(epochs))} epochs, {'seed' if len(seeds) == 1 else 'seeds'} {_listed(sorted(seeds))}."


def known_part(finding: str) -> str:
    """A finding without the clauses (up to a semicolon or full stop) that hold an unknown number."""
    clauses = re.split(r"(?<=[;.])\s+(?![^()]*\))", finding)  # not inside of parentheses
    unknown = re.compile(rf"\bnan\b|(?<!\w){tables.UNKNOWN}(?!\w)")
    return re.sub(r";$", ".", " ".join(clause for clause in clauses if not unknown.search(clause)))


def escaped(text: str) -> str:
    """Text (reasons, run ids) escaped so that markdown shows it literally."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&])", r"\\\1", text)


def _picture(figure, kind):
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
    return buffer.getvalue()


def _listed(values):
    words = [f"{value:g}" for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
