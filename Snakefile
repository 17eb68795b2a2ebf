"""The whole study as one graph: train every run, collect the results, render every item, gather the report.

    snakemake --config study=tiny        (or digits, lite, paper; -n for a dry run)

cirl.study.catalog alone decides what is trained and rendered. A run is trained again when its parameters or its training
code change, never because a notebook was edited. With `--config study=paper train=no` nothing is trained: items render
from the finished runs and from data/results.csv and data/history.csv.

Snakemake deletes the outputs of interrupted jobs, so no result is an output of `train`: its output is an empty file
`trained` beside metrics.json, and 02_train itself skips finished runs.
"""

import csv
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout
from snakemake.exceptions import WorkflowError

from cirl.run import machine
from cirl.study import catalog, resources
from cirl.errors import UserError
from cirl.run.digest import training_digest

machine.pin()  # jobs inherit the environment
os.environ.setdefault("PYTHONUTF8", "1")
STUDY = config.get("study", "tiny")
TRAIN = config.get("train", "yes") != "no"
EXTRAS = config.get("extras", "no") == "yes"  # also train what is needed only by items beyond the paper
CORE = config.get("core", "no") == "yes"  # train only a core and compare it with the records
try:
    RUNS = {run.id: run for run in (catalog.core(STUDY) if CORE else catalog.all_runs(STUDY, EXTRAS))}
except UserError as error:
    raise WorkflowError(str(error))
FIGURES = f"figures/{STUDY}"
QUIETLY = "> {log.words} 2>&1 || {{ tail -n 4 {log.words} >&2; exit 1; }}"
NOTEBOOKS = catalog.notebooks(STUDY, weights=TRAIN, trained=[*RUNS.values()] if CORE else None)
PART = f"catalog.core('{STUDY}')" if CORE else f"catalog.all_runs('{STUDY}', {EXTRAS})"
PROGRESS = (
    f'python -c "from cirl.show import reproduce; from cirl.study import catalog;'
    f" print('training {{wildcards.id}} (' + reproduce.progress({PART}, {workflow.cores or 1}) + ')')\" >&2 2> /dev/null || true; "
)
COLLECTED = f"data/executed/{STUDY}/collected"  # not results.csv, which `git checkout` makes newer than any run
DRIVER = FileLock(f".snakemake/{STUDY}-{'train' if TRAIN else 'render'}.lock", fallback_to_soft=False)


def trained(runs):
    return [f"data/runs/{run.id}/trained" for run in runs] if TRAIN else []


def parameters(wildcards):
    fields = asdict(RUNS[wildcards.id]).items()
    return " ".join(f"-r {name} {shlex.quote(str(value))}" for name, value in fields)


def asked(resource):
    return lambda wildcards: resources.resources(RUNS[wildcards.id])[resource]


def is_marked(id):
    """Mark a run as trained if and only if its folder is finished, whichever process trained it."""
    result, mark = Path(f"data/runs/{id}/metrics.json"), Path(f"data/runs/{id}/trained")
    if not result.exists():
        mark.unlink(missing_ok=True)
    elif not mark.exists():
        mark.touch()
        os.utime(mark, ns=(result.stat().st_mtime_ns,) * 2)
    return result.exists()


def collected(name):
    """The runs in a collected file; none if it is missing or damaged."""
    try:
        with open(f"data/{name}", encoding="utf-8", newline="") as rows:
            return {row.get("id") for row in csv.DictReader(rows)}
    except (OSError, ValueError, csv.Error):
        return set()


if workflow.is_main_process and TRAIN:
    done = {id for id in RUNS if is_marked(id)}
    print(f"study {STUDY}: {len(done)} of {len(RUNS)} runs finished", file=sys.stderr)
    if not CORE and not done <= collected("results.csv") & collected("history.csv"):
        Path(COLLECTED).unlink(missing_ok=True)  # collect again, even if it failed last time


onstart:
    try:
        DRIVER.acquire(timeout=0)  # held until this process ends
    except Timeout:
        raise WorkflowError(f"Another snakemake is working on the study {STUDY} in this folder; wait for it or stop it.")


rule all:
    input:
        trained(RUNS.values()),  # requested by name, so that a run whose folder was deleted is trained again
        COLLECTED if TRAIN and not CORE else [],
        f"{FIGURES}/reproduced.md" if CORE else [],
        f"{FIGURES}/report.html",


rule train:
    input:
        ancient("notebooks/02_train.ipynb"),
    output:
        touch("data/runs/{id}/trained"),
    log:
        notebook="data/runs/{id}/02_train.ipynb",
        words="data/executed/{id}.log",
    params:
        fields=parameters,
        code=lambda wildcards: training_digest(RUNS[wildcards.id]),
    threads: 1
    resources:  # of a cluster (profiles/slurm)
        gpu=asked("gpu"),
        mem_mb=asked("mem_mb"),
        runtime=asked("runtime"),
    group:
        lambda wildcards: resources.group(RUNS[wildcards["id"]])
    shell:
        PROGRESS + "papermill {input} {log.notebook} --no-progress-bar -p threads {threads} -p again True {params.fields} " + QUIETLY


rule reproduce:
    input:
        trained(RUNS.values()),
    output:
        f"{FIGURES}/reproduced.md",
    shell:
        "python -c 'from cirl.show import reproduce; print(reproduce.write_agreement(\"{STUDY}\"))'"


rule collect:
    input:
        trained(RUNS.values()),
    output:
        touch(COLLECTED),
    shell:
        "python -c 'from cirl.study import catalog, records; records.collect(catalog.all_runs(\"{STUDY}\", True), \"{STUDY}\")'"


for notebook, items in NOTEBOOKS.items():

    rule:
        name:
            notebook
        input:
            notebook=f"notebooks/{notebook}.ipynb",
            looks=["cirl/show/style.py", "cirl/show/tables.py", "cirl/show/claims.py", "cirl/show/save.py"],
            measures=["cirl/analysis/audits.py", "cirl/analysis/properties.py"] if notebook in catalog.AUDITS else [],
            runs=trained(run for item in items for run in catalog.expected(item, STUDY) if run.id in RUNS),
        output:
            [f"{FIGURES}/{item}.{kind}" for item in items for kind in catalog.ITEMS[item].kinds],
        log:
            notebook=f"data/executed/{STUDY}/{notebook}.ipynb",
            words=f"data/executed/{STUDY}/{notebook}.log",
        shell:
            "papermill {input.notebook} {log.notebook} --no-progress-bar -p study {STUDY} " + QUIETLY


rule report:
    input:
        notebook="notebooks/report.ipynb",
        captions=[f"{FIGURES}/{item}.md" for items in NOTEBOOKS.values() for item in items],
    output:
        f"{FIGURES}/report.html",
    log:
        notebook=f"data/executed/{STUDY}/report.ipynb",
        words=f"data/executed/{STUDY}/report.log",
    shell:
        "papermill {input.notebook} {log.notebook} --no-progress-bar -p study {STUDY} " + QUIETLY
