"""The core of `tiny` while its processes are killed every few seconds, until all is finished: `make soak`.

    python tests/soak.py [--only deepall] [--every 30 90]

A training is killed, its papermill, or (every tenth time) the driver, which is then started again. In the end no run
may be lost, and every record must equal that of an undisturbed run: the committed one if the same code trained it
(on any CPU: cirl/run/machine.py), otherwise one that is trained first; with --train all are. Both work on the committed
state, in clones of their own.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from cirl import paths
from cirl.run.config import Run
from cirl.run.digest import training_digest
from cirl.study import catalog, records

EVERY = (4.0, 12.0)  # seconds between kills; more on a busy machine, where a run needs long to start
HERE = Path(__file__).resolve().parent.parent
ROWS = "run"  # the one row of the tables that are compared


def clone(place: Path) -> Path:
    """Clone the committed state of this project."""
    subprocess.run(["git", "clone", "--quiet", HERE, place], check=True)
    return place


def begin(root: Path, runs: list[Run]) -> subprocess.Popen:
    """Start a driver that trains the runs; what is killed is tried again."""
    targets = [f"data/runs/{run.id}/trained" for run in runs]
    command = ["snakemake", "--retries", "100", "--quiet", "all", "--config", "study=tiny", "core=yes", "--", *targets]
    environment = {**os.environ, "PYTHONPATH": str(root), "CIRL_ROOT": str(root), "OMP_NUM_THREADS": "1"}
    log = open(root / "soak.log", "a")  # noqa: SIM115
    return subprocess.Popen(command, cwd=root, env=environment, stdout=log, stderr=log)


def victims(root: Path) -> list[psutil.Process]:
    """The processes that train in a project, and the papermills that wait for them."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            trains = "ipykernel_launcher" in words or "cirl.run.execute" in words
            if trains and process.environ().get("CIRL_ROOT") == str(root):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def kill_until_finished(root: Path, runs: list[Run], every: tuple[float, float]) -> dict[str, int]:
    """Kill a process now and then until the driver has trained all runs: what was killed, and how often."""
    chance, kills, driver = random.Random(0), {"trainings": 0, "papermills": 0, "drivers": 0}, begin(root, runs)
    while driver.poll() is None:
        total = sum(kills.values())
        time.sleep(chance.uniform(*every) * (1 + total / 50))  # ever slower, so that the longest epochs end at last
        found = victims(root)
        if driver.poll() is None and found:
            driver = kill_one(root, runs, driver, chance.choice(found), kills)
            print(f"{sum(kills.values())} kills, {len(finished(root, runs))} runs finished", end="\r", flush=True)
    if driver.returncode:
        sys.exit(f"The driver failed after {kills}; see {root}/soak.log and {root}/data/executed.")
    return kills


def kill_one(root, runs, driver, process, kills):
    """Kill a process, or every tenth time the driver; return the driver that works from now on."""
    if sum(kills.values()) % 10 == 9:
        driver.kill()
        driver.wait()
        kills["drivers"] += 1
        return begin(root, runs)
    try:
        kind = "papermills" if "cirl.run.execute" in process.cmdline() else "trainings"
        process.send_signal(signal.SIGKILL)
        kills[kind] += 1
    except psutil.NoSuchProcess:
        pass  # it ended by itself
    return driver


def finished(root: Path, runs: list[Run]) -> list[Run]:
    return [run for run in runs if (root / "data" / "runs" / run.id / "metrics.json").exists()]


def trained(root: Path, runs: list[Run]) -> dict[str, dict]:
    """The records of the runs in another project's folders, with their histories."""
    paths.RUNS = root / "data" / "runs"
    return with_histories(records.folder_records(runs)[0], runs)


def committed(runs: list[Run]) -> dict[str, dict]:
    """The committed records of the runs, with their histories; only those of the same code and number of threads."""
    paths.RUNS = HERE / "data" / "none"
    kept, _ = records.collected_records(runs)
    code = {run.id: training_digest(run) for run in runs}
    same = [name for name, record in kept.items() if (record["code"], record["threads"]) == (code[name], 1)]
    return with_histories({name: kept[name] for name in same}, runs)


def with_histories(found: dict[str, dict], runs: list[Run]) -> dict[str, dict]:
    """What two records must share: all but the time and the commit, and every epoch."""
    epochs = records.load_history({ROWS: [run for run in runs if run.id in found]})
    epochs = epochs.drop(columns="seconds", errors="ignore")
    rows = {name: own.dropna(axis=1, how="all").fillna("none") for name, own in epochs.groupby("id")}
    chosen = [f"{rule}.{name}" for rule in records.RULES for name in records.CHOSEN]
    return {
        name: {column: record[column] for column in (*chosen, "floor", "model_sha256", "code", "data_digest")}
        | {"epochs": rows[name].to_dict("records")}
        for name, record in found.items()
    }


def undisturbed(place: Path, runs: list[Run], train: bool) -> dict[str, dict]:
    """The committed records, and those of runs that have none, trained now; with `train`, all are trained now."""
    known = {} if train else committed(runs)
    missing = [run for run in runs if run.id not in known]
    print(f"{len(known)} runs have a record of this code, {len(missing)} are trained first", flush=True)
    if missing:
        root = clone(place / "undisturbed")
        if begin(root, missing).wait():
            sys.exit(f"The undisturbed runs did not finish; see {root}/soak.log.")
        known |= trained(root, missing)
    return known


def selected(pattern: str) -> list[Run]:
    """The runs of the core whose id contains the pattern."""
    runs = [run for run in catalog.core("tiny") if pattern in run.id]
    if not runs:
        sys.exit(f"No run of the core has {pattern!r} in its id: {', '.join(run.id for run in catalog.core('tiny'))}.")
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only the runs whose id contains this, such as deepall")
    parser.add_argument("--every", nargs=2, type=float, default=EVERY, help="least and most seconds between kills")
    parser.add_argument("--train", action="store_true", help="train undisturbed runs even if there are records of them")
    options = parser.parse_args()
    runs = selected(options.only)
    start, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="soak-"))
    expected = undisturbed(place, runs, options.train)
    root = clone(place / "disturbed")
    kills = kill_until_finished(root, runs, options.every)
    found = trained(root, runs)
    lost = [run.id for run in runs if run.id not in found]
    different = [name for name in found if found[name] != expected[name]]
    killed = ", ".join(f"{number} {kind}" for kind, number in kills.items())
    print(f"{sum(kills.values())} kills ({killed}), {len(found)} of {len(runs)} runs finished")
    print(
        f"{len(lost)} lost {lost}, {len(different)} different {different}, {time.monotonic() - start:.0f} s ({place})"
    )
    sys.exit(bool(lost or different))


if __name__ == "__main__":
    main()
