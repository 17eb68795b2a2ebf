"""The whole study as one graph: train every run, collect the results, render every item, gather the report.

    snakemake --config study=tiny        (or digits, lite, paper; -n for a dry run)

cirl.study.catalog alone decides what is trained and rendered. A run is trained again when its parameters or its training
code change, never because a notebook was edited. With `--config study=paper train=no` nothing is trained: items render
from the finished runs and from data/results.csv and data/history.csv; what has no run there is left out. With
`missing=yes` the runs that these files have from the present code are not trained; an item that needs their weights is
drawn only if the weights are here.

Snakemake deletes the outputs of interrupted jobs, so no result is an output of `train`: its output is an empty file
`trained` beside metrics.json, and 02_train itself skips finished runs.
"""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout
from snakemake.exceptions import WorkflowError

from cirl.run import machine
from cirl.study import catalog, marks, resources
from cirl.errors import UserError
from cirl.run.digest import training_digest
from cirl.run.folder import has_weights, is_finished

machine.pin()  # jobs inherit the environment
os.environ.setdefault("PYTHONUTF8", "1")


def switch(name, usual):
    """Whether --config says yes; a misspelt name or value must not train for a night."""
    values = {"yes": True, "true": True, "no": False, "false": False}
    value = str(config.get(name, usual)).lower()
    if value not in values:
        raise WorkflowError(f"--config {name}={value} is not possible; allowed: yes, no.")
    return values[value]


if unknown := set(config) - {"study", "train", "extras", "core", "missing"}:
    raise WorkflowError(f"--config has no {', '.join(sorted(unknown))}; there are study, train, extras, core, missing.")
STUDY = config.get("study", "tiny")
TRAIN = switch("train", "yes")
EXTRAS = switch("extras", "no")  # also train what only the items beyond the paper need
CORE = switch("core", "no")  # train a core alone and compare it with the records
MISSING = switch("missing", "no")  # train only what has no record by the present code
try:
    WANTED = catalog.core(STUDY) if CORE else catalog.all_runs(STUDY, EXTRAS)
    RUNS = {run.id: run for run in (marks.without_record(WANTED) if MISSING else WANTED)}
except UserError as error:
    raise WorkflowError(str(error))
FIGURES = f"figures/{STUDY}"
PAPERMILL = "python -m cirl.run.execute"  # papermill, started faster
QUIETLY = "> {log.words} 2>&1 || {{ tail -n 4 {log.words} >&2; exit 1; }}"
SHOWN = "> {log} 2>&1 && cat {log} || {{ tail -n 1 {log} >&2; exit 1; }}"  # of a traceback, the sentence at its end
RECORDS = [name for name in ("data/results.csv",) if Path(name).exists()]
WEIGHTS = [run for run in WANTED if run.id in RUNS or has_weights(run)]  # that this machine has or will have
RECORDED = None  # training makes the records that are missing
if not TRAIN:
    RECORDED = {run.id for run in catalog.all_runs(STUDY, True) if is_finished(run)} | {*marks.collected("results.csv")}
NOTEBOOKS = catalog.notebooks(STUDY, TRAIN, WEIGHTS if CORE or MISSING else None, RECORDED)
PART = f"catalog.core('{STUDY}')" if CORE else f"catalog.all_runs('{STUDY}', {EXTRAS})"
PART = f"marks.without_record({PART})" if MISSING else PART
PROGRESS = (
    f'python -c "from cirl.show import reproduce; from cirl.study import catalog, marks;'
    f" print('training {{wildcards.id}} (' + reproduce.progress({PART}, {workflow.cores or 1}) + ')')\" >&2 2> /dev/null || true; "
)
COLLECTED = f"data/executed/{STUDY}/collected"  # not results.csv, which `git checkout` makes newer than any run
DRIVER = FileLock(f".snakemake/{STUDY}-{'train' if TRAIN else 'render'}.lock", fallback_to_soft=False)


def trained(runs):
    return [marks.evidence(run) for run in runs] if TRAIN else []


def parameters(wildcards):
    fields = asdict(RUNS[wildcards.id]).items()
    return " ".join(f"-r {name} {shlex.quote(str(value))}" for name, value in fields)


def asked(resource):
    return lambda wildcards: resources.resources(RUNS[wildcards.id])[resource]


# what `--quiet` leaves: three lines of scheduling per job, between which those of the runs would be lost
logger.addFilter(lambda record: not str(record.msg).startswith(("Select jobs", "Execute ", "Touching output")))

if workflow.is_main_process and TRAIN:
    try:
        done = {id for id, run in RUNS.items() if marks.mark(run)}
    except UserError as error:
        raise WorkflowError(str(error))
    recorded = f" ({len(WANTED) - len(RUNS)} others have records)" if MISSING else ""
    print(f"study {STUDY}: {len(done)} of {len(RUNS)} runs finished{recorded}", file=sys.stderr)
    if not CORE and not done <= marks.collected("results.csv").keys() & marks.collected("history.csv").keys():
        Path(COLLECTED).unlink(missing_ok=True)  # collect again, also if it failed last time


onstart:
    try:
        DRIVER.acquire(timeout=0)  # held until this process ends
    except Timeout:
        raise WorkflowError(f"Another snakemake is working on the study {STUDY} in this folder; wait for it or stop it.")
    except OSError as error:  # a file system without locks; each run has a lock with a heartbeat
        print(f"No lock in this folder ({error.strerror}): do not start a second snakemake.", file=sys.stderr)


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
        PROGRESS + "{PAPERMILL} {input} {log.notebook} --no-progress-bar -p threads {threads} -p again True {params.fields} " + QUIETLY


rule reproduce:
    input:
        trained(RUNS.values()),
        RECORDS,
    output:
        f"{FIGURES}/reproduced.md",
    log:
        f"data/executed/{STUDY}/reproduce.log",
    shell:
        "python -c 'from cirl.show import reproduce; print(reproduce.write_agreement(\"{STUDY}\"))' " + SHOWN


rule collect:
    input:
        trained(RUNS.values()),
    output:
        touch(COLLECTED),
    log:
        f"data/executed/{STUDY}/collect.log",
    shell:
        "python -c 'from cirl.study import catalog, records; "
        "records.collect(catalog.all_runs(\"{STUDY}\", True), \"{STUDY}\")' " + SHOWN


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
            "{PAPERMILL} {input.notebook} {log.notebook} --no-progress-bar -p study {STUDY} " + QUIETLY


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
        "{PAPERMILL} {input.notebook} {log.notebook} --no-progress-bar -p study {STUDY} " + QUIETLY
