"""The grid through a real SLURM: `make test-slurm`, as root on Debian or Ubuntu, in some ten minutes.

A cluster of one node comes up in a folder of its own. Four runs of `tiny` go through profiles/slurm as two jobs of two.
The first job that has a checkpoint is cancelled (Snakemake sends it again), the second is put back into the queue
(SLURM starts it again). Both must go on at their epoch, and all runs end with the bits of runs without SLURM.
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
TARGETS = [f"data/runs/{run}/metrics.json" for run in RUNS]
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
    """SLURM and munge from Debian's packages, where they are not there yet."""
    if os.geteuid() != 0:
        stop("SLURM's daemons and apt-get need root; run it as root, best in a container.")
    if not all(shutil.which(name) for name in ("munged", "slurmctld", "slurmd", "sbatch")):
        print("installing slurm-wlm and munge by apt-get", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "slurm-wlm", "munge"]
        for command in (["apt-get", "update", "--quiet"], packages):
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def until(holds, what, minutes=10.0):
    """Wait until something holds; not for ever."""
    end = time.monotonic() + 60 * minutes
    while not holds():
        if time.monotonic() > end:
            stop(f"waited {minutes} minutes in vain: {what}.")
        time.sleep(0.2)


def slurm(*command):
    """The words that one of SLURM's commands prints; none where it fails."""
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
    """munged, slurmctld and slurmd, all of whose files are in `place`; stopped again whatever happens."""
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
    """What training needs, without any runs."""
    for name in ("Snakefile", "profiles", "notebooks", "cirl"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
    return place


def snakemake(project, *options):
    environment = {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1"}
    log = open(project / "snakemake.log", "w")  # noqa: SIM115
    command = ["snakemake", *TARGETS, *options]
    return subprocess.Popen(command, cwd=project, env=environment, stdout=log, stderr=log)


def halfway(project):
    """How many epochs the newest whole state of each unfinished run holds."""
    states = {run: [read_checked(project / "data/runs" / run / name) for name in STATES] for run in RUNS}
    newest = {run: kept[0] or kept[1] for run, kept in states.items() if any(kept)}
    return {run: len(torch.load(io.BytesIO(kept), weights_only=True)["history"]) for run, kept in newest.items()}


def interrupt(project, workflow, left_out, *command):
    """Do something to the job of the next run that has a checkpoint: the job's number, and the run with its epochs."""
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
    """Send the runs, disturb both jobs, wait for the end; the two runs that were stopped, with their epochs."""
    workflow = snakemake(project, "--workflow-profile", "profiles/slurm", "--group-components", "short=2", *HERE)
    try:
        cancelled, first = interrupt(project, workflow, {}, "scancel")
        requeued, second = interrupt(project, workflow, first, "scontrol", "requeue")
        until(lambda: workflow.poll() is not None, f"snakemake ends ({project}/snakemake.log)", 15)
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
    for run, epochs in stopped.items():
        if f"{run}: {epochs} of " not in (on_slurm / "data/runs" / run / "02_train.ipynb").read_text():
            stop(f"{run} was stopped after {epochs} epochs and did not go on there.")
    if snakemake(local, "--cores", "2").wait() != 0:
        stop(f"snakemake failed without SLURM: {local}/snakemake.log")
    for run in RUNS:
        compare(run, on_slurm, local)
    print(f"{len(stopped)} runs went on at their epoch, all {len(RUNS)} equal the local ones bit for bit")
    print(f"passed in {time.monotonic() - start:.0f} s")
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
