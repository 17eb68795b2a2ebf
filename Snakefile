"""The whole study as one graph: train every run, collect the results, render every item, gather the report.

    snakemake --config study=tiny        (or digits, lite, paper; -n for a dry run)

What must be trained and rendered is said by cirl.study.catalog alone. A run is trained again when its parameters or the code of
training change, never because a notebook was edited. With `--config study=paper train=no` nothing is trained: items render
from the runs that are there and from data/results.csv and data/history.csv.
"""

import shlex
import sys
from dataclasses import asdict

from snakemake.exceptions import WorkflowError

from cirl.run import machine
from cirl.study import catalog, resources
from cirl.errors import UserError
from cirl.run.digest import training_digest

machine.pin()  # jobs inherit the environment
STUDY = config.get("study", "tiny")
TRAIN = config.get("train", "yes") != "no"
EXTRAS = config.get("extras", "no") == "yes"  # also train what only the items beyond the paper need
try:
    RUNS = {run.id: run for run in catalog.all_runs(STUDY, EXTRAS)}
except UserError as error:
    raise WorkflowError(str(error))
FIGURES = f"figures/{STUDY}"
QUIETLY = "> {log.words} 2>&1 || {{ tail -n 4 {log.words} >&2; exit 1; }}"
NOTEBOOKS = catalog.notebooks(STUDY, weights=TRAIN)


def metrics(runs):
    return [f"data/runs/{run.id}/metrics.json" for run in runs] if TRAIN else []


def parameters(wildcards):
    fields = asdict(RUNS[wildcards.id]).items()
    return " ".join(f"-p {name} {shlex.quote(str(value))}" for name, value in fields)


def asked(resource):
    return lambda wildcards: resources.resources(RUNS[wildcards.id])[resource]


done = sum(os.path.exists(file) for file in metrics(RUNS.values()))
print(f"study {STUDY}: {done} of {len(RUNS)} runs finished", file=sys.stderr)


rule all:
    input:
        metrics(RUNS.values()),  # asked for by name, so that a run whose folder was deleted is trained again
        "data/results.csv" if TRAIN else [],
        f"{FIGURES}/report.html",


rule train:
    input:
        ancient("notebooks/02_train.ipynb"),
    output:
        "data/runs/{id}/metrics.json",
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
        "papermill {input} {log.notebook} --no-progress-bar -p threads {threads} {params.fields} " + QUIETLY


rule collect:
    input:
        metrics(RUNS.values()),
    output:
        update("data/results.csv"),
        update("data/history.csv"),
    shell:
        "python -c 'from cirl.study import catalog, records; records.collect(catalog.all_runs(\"{STUDY}\", True), \"{STUDY}\")'"


for notebook, items in NOTEBOOKS.items():

    rule:
        name:
            notebook
        input:
            notebook=f"notebooks/{notebook}.ipynb",
            looks="cirl/show/report.py",
            measures=["cirl/analysis/audits.py", "cirl/analysis/properties.py"] if notebook in catalog.AUDITS else [],
            runs=metrics(run for item in items for run in catalog.expected(item, STUDY) if run.id in RUNS),
        output:
            [f"{FIGURES}/{item}.{kind}" for item in items for kind in catalog.kinds(item)],
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
