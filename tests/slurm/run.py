"""The grid through a real SLURM: `make test-slurm`, as root on Debian or Ubuntu, in about a quarter of an hour.

A cluster of one node is started in a temporary folder. Four runs of `tiny` go through profiles/slurm as two jobs of
two. The first job that has a checkpoint is cancelled (Snakemake submits it again), the second is requeued (SLURM
restarts it). Both must resume at their epoch, and all runs must be bit-identical to runs without SLURM. Then

- the driver of another two runs is killed; its jobs finish, and the next driver must leave their results as they are;
- two tasks of one job start the same run: one trains it, the other names the first and leaves.
"""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch

from cirl.run.checkpoint import STATES
from cirl.run.config import Run
from cirl.run.files import read_checked

ROOT = Path(__file__).resolve().parents[2]
RUNS = [Run("tiny", target, "deepall").id for target in ("plain", "photo", "street", "print")]
MORE = [Run("tiny", target, "deepall", seed=1).id for target in ("plain", "photo")]
SHARED = Run("tiny", "street", "deepall", seed=9, epochs=2)
HERE = ("--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "5", "--latency-wait", "5")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=10000
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE
"""


def stop(message):
    sys.exit(f"test-slurm: {message}")


def install():
    """Install SLURM and munge from Debian's packages if they are missing."""
    if os.geteuid() != 0:
        stop("SLURM's daemons and apt-get need root; run it as root, best in a container.")
    if not all(shutil.which(name) for name in ("munged", "slurmctld", "slurmd", "sbatch")):
        print("installing slurm-wlm and munge by apt-get", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "slurm-wlm", "munge"]
        for command in (["apt-get", "update", "--quiet"], packages):
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def until(holds, what, minutes=40.0):
    """Wait until something holds, for a limited time."""
    end = time.monotonic() + 60 * minutes
    while not holds():
        if time.monotonic() > end:
            stop(f"waited {minutes} minutes: {what}.")
        time.sleep(0.2)


def slurm(*command):
    """The words that one of SLURM's commands prints; none if it fails."""
    return subprocess.run(command, capture_output=True, text=True).stdout.split()


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def configure(place, host):
    """The key and the configuration of the cluster, and how its daemons are started."""
    (place / "munge.key").write_bytes(os.urandom(128))
    (place / "munge.key").chmod(0o400)
    (place / "slurm.conf").write_text(CONFIG.format(host=host, ports=free_ports(2), place=place))
    (place / "bin").mkdir()  # the plugin hides SLURM_CONF from the srun within a job, hence one that knows it
    (place / "bin/srun").write_text(f'#!/bin/sh\nSLURM_CONF={place}/slurm.conf exec {shutil.which("srun")} "$@"\n')
    (place / "bin/srun").chmod(0o755)
    os.environ |= {"SLURM_CONF": f"{place}/slurm.conf", "PATH": f"{place}/bin:{os.environ['PATH']}"}
    munge = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
    return [
        ["munged", "--foreground", *(f"--{option}={place / name}" for option, name in munge.items())],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", host],
    ]


@contextmanager
def cluster(place):
    """munged, slurmctld and slurmd with all their files in `place`; stopped whatever happens."""
    daemons = configure(place, socket.gethostname().split(".")[0])
    started = []
    try:
        for command in daemons:
            log = open(place / f"{command[0]}.log", "w")  # noqa: SIM115
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
            if command[0] == "munged":
                until((place / "munge.socket").exists, "munged opens its socket", 0.5)
        until(lambda: slurm("sinfo", "-h", "-o", "%T") == ["idle"], f"the node is idle (logs in {place})", 1)
        yield
    finally:
        try:
            slurm("scancel", "--user=root")
            until(lambda: not slurm("squeue", "-h"), "all jobs stop", 1)
        finally:
            for daemon in reversed(started):
                daemon.terminate()
                daemon.wait(30)


def copy_of_the_project(place):
    """A project with what training needs, but without runs."""
    for name in ("Snakefile", "profiles", "notebooks", "cirl"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
    return place


def environment(project):
    return {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}


def snakemake(project, runs, *options):
    log = open(project / "snakemake.log", "w")  # noqa: SIM115
    command = ["snakemake", *(f"data/runs/{run}/trained" for run in runs), *options]
    return subprocess.Popen(command, cwd=project, env=environment(project), stdout=log, stderr=log)


def on_cluster(project, runs):
    return snakemake(project, runs, "--workflow-profile", "profiles/slurm", "--group-components", "short=2", *HERE)


def halfway(project):
    """The number of epochs in the newest intact checkpoint of each unfinished run."""
    states = {run: [read_checked(project / "data/runs" / run / name) for name in STATES] for run in RUNS}
    newest = {run: kept[0] or kept[1] for run, kept in states.items() if any(kept)}
    return {run: len(torch.load(io.BytesIO(kept), weights_only=True)["history"]) for run, kept in newest.items()}


def interrupt(project, workflow, left_out, *command):
    """Run a command on the job of the next run that has a checkpoint: the job's number, and the run with its epochs."""
    log, runs = project / "snakemake.log", []

    def found():
        if workflow.poll() is not None:
            stop(f"snakemake ended before its jobs were disturbed: {log}")
        runs[:] = halfway(project).keys() - left_out.keys()
        return runs

    until(found, f"a run has a checkpoint ({log})")
    logs = sorted((project / ".snakemake/slurm_logs").rglob("*.log"))
    job = next(file.stem for file in logs if f"train:id={runs[0]}" in file.read_text())
    subprocess.run([*command, job], check=True)
    until(lambda: job not in slurm("squeue", "-h", "-t", "running,completing", "-o", "%i"), f"job {job} stops", 1)
    epochs = halfway(project)[runs[0]]
    print(f"{' '.join(command)} {job}: {runs[0]} stopped after {epochs} epochs", flush=True)
    return job, {runs[0]: epochs}


def through_slurm(project):
    """Submit the runs, disturb both jobs, wait for the end; the two runs that were stopped, with their epochs."""
    workflow = on_cluster(project, RUNS)
    try:
        cancelled, first = interrupt(project, workflow, {}, "scancel")
        requeued, second = interrupt(project, workflow, first, "scontrol", "requeue")
        until(lambda: workflow.poll() is not None, f"snakemake ends ({project}/snakemake.log)")
    finally:
        workflow.kill()
    if workflow.returncode != 0:
        stop(f"snakemake failed on SLURM: {project}/snakemake.log")
    jobs = slurm("squeue", "-h", "-t", "all", "-S", "i", "-o", "%i:%T")
    print("jobs", *jobs)
    restarted = "Restarts=1" in slurm("scontrol", "show", "job", requeued)
    if f"{cancelled}:CANCELLED" not in jobs or f"{requeued}:COMPLETED" not in jobs or not restarted:
        stop(f"job {cancelled} was to be cancelled, and job {requeued} to be started again and completed.")
    return first | second


def survive_the_driver(project):
    """Kill the driver when a run has begun; what its jobs finish must be left as it is by the next driver."""
    workflow = on_cluster(project, MORE)
    until(lambda: any((project / "data/runs" / run / "lock").exists() for run in MORE), "a run begins")
    workflow.kill()
    workflow.wait()
    until(lambda: not slurm("squeue", "-h"), "the jobs of the dead driver end")
    results = [project / "data/runs" / run / "metrics.json" for run in MORE]
    before = [(file.stat().st_ino, file.stat().st_mtime_ns) for file in results]
    if on_cluster(project, MORE).wait() != 0:
        stop(f"the next driver failed: {project}/snakemake.log")
    if [(file.stat().st_ino, file.stat().st_mtime_ns) for file in results] != before:
        stop("the next driver trained again what the jobs of the dead one had finished.")
    print(f"driver killed, {len(MORE)} runs finished by its jobs and kept by the next driver", flush=True)


def two_tasks(project):
    """One of two tasks of a job trains the run, the other names it and leaves."""
    fields = f"-r seed {SHARED.seed} -r epochs {SHARED.epochs} -r method {SHARED.method} -r target {SHARED.target}"
    line = f"papermill notebooks/02_train.ipynb task$SLURM_PROCID.ipynb {fields} > task$SLURM_PROCID.log 2>&1"
    subprocess.run(["srun", "--ntasks=2", "bash", "-c", line], cwd=project, env=environment(project))
    said = [(project / f"task{number}.log").read_text(encoding="utf-8") for number in (0, 1)]
    if ["is being trained by process" in text for text in said].count(True) != 1:
        stop(f"of two tasks of one job, one was to train and the other to leave: {project}/task0.log, task1.log")
    if not (project / "data/runs" / SHARED.id / "metrics.json").exists():
        stop(f"the run that two tasks wanted is not finished: {project}/task0.log, task1.log")
    print("two tasks of one job: one trained, the other left", flush=True)


def compare(run, here, there):
    """The history and metrics without times, and the weights."""
    here, there = (project / "data/runs" / run for project in (here, there))
    histories = [pd.read_csv(place / "history.csv", dtype=str).drop(columns="seconds") for place in (here, there)]
    metrics = [json.loads((place / "metrics.json").read_text()) | {"seconds": 0} for place in (here, there)]
    weights = [torch.load(place / "model.pt", weights_only=True) for place in (here, there)]
    same = weights[0].keys() == weights[1].keys() and all(torch.equal(w, weights[1][n]) for n, w in weights[0].items())
    if not (histories[0].equals(histories[1]) and metrics[0] == metrics[1] and same):
        stop(f"{run}: {here} and {there} differ.")


def main():
    signal.signal(signal.SIGTERM, lambda *_: stop("stopped."))  # the daemons too
    install()
    start, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="cirl-slurm-"))
    place.chmod(0o755)  # munge asks for it
    print(f"everything is in {place}", flush=True)
    on_slurm, local = (copy_of_the_project(place / name) for name in ("slurm", "local") if not (place / name).mkdir())
    with cluster(place):
        stopped = through_slurm(on_slurm)
        survive_the_driver(on_slurm)
        two_tasks(on_slurm)
    for run, epochs in stopped.items():
        if f"{run}: {epochs} of " not in (on_slurm / "data/runs" / run / "02_train.ipynb").read_text():
            stop(f"{run} was stopped after {epochs} epochs and did not resume there.")
    if snakemake(local, RUNS, "--cores", "2").wait() != 0:
        stop(f"snakemake failed without SLURM: {local}/snakemake.log")
    for run in RUNS:
        compare(run, on_slurm, local)
    print(f"{len(stopped)} runs resumed at their epoch, all {len(RUNS)} equal the local ones bit for bit")
    print(f"passed in {time.monotonic() - start:.0f} s")
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
