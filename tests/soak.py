"""The study `tiny` while a random one of its trainings is killed every few seconds, until all is finished: `make soak`.

It runs in a clone. Its records must then equal those of an undisturbed study, which is trained first in
another clone, or has been before:

    python tests/soak.py [/path/of/a/project/with/the/undisturbed/study]
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import psutil

EVERY = (4.0, 12.0)  # seconds between kills
HERE = Path(__file__).resolve().parent.parent


def clone(place: Path) -> Path:
    """Clone the committed state of this project."""
    subprocess.run(["git", "clone", "--quiet", HERE, place], check=True)
    return place


def begin_study(root: Path) -> subprocess.Popen:
    """Train the study and collect its records; killed jobs are repeated."""
    command = ["snakemake", "--config", "study=tiny", "--retries", "100", "--until", "collect", "--quiet", "all"]
    environment = {**os.environ, "PYTHONPATH": str(root), "CIRL_ROOT": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def trainings(root: Path) -> list[psutil.Process]:
    """The processes that train in a project."""
    found = []
    for process in psutil.process_iter():
        try:
            if "ipykernel_launcher" in process.cmdline() and process.environ().get("CIRL_ROOT") == str(root):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def kill_until_finished(root: Path) -> int:
    """The number of kills that the study survived."""
    chance, kills, study = random.Random(0), 0, begin_study(root)
    while study.poll() is None:
        time.sleep(chance.uniform(*EVERY) * (1 + kills / 50))  # ever less often: long epochs finish, too
        victims = trainings(root)
        if victims:
            os.kill(chance.choice(victims).pid, signal.SIGKILL)
            kills += 1
            print(f"{kills} kills, {finished(root)} runs finished", end="\r", flush=True)
    if study.returncode:
        sys.exit(f"The study did not end well after {kills} kills; see {root}/data/executed.")
    return kills


def finished(root: Path) -> int:
    return len([*(root / "data" / "runs").glob("*/metrics.json")])


def differing(root: Path, undisturbed: Path) -> list[str]:
    """The trained runs whose records are not equal, but for the seconds and the commit."""
    tables = [pd.read_csv(each / "data" / "results.csv", dtype=str).set_index("id") for each in (root, undisturbed)]
    ours, theirs = (table.drop(columns=["seconds", "commit"]) for table in tables)
    runs = [path.parent.name for path in (root / "data" / "runs").glob("*/metrics.json")]
    return [run for run in runs if run not in theirs.index or not ours.loc[run].equals(theirs.loc[run])]


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    undisturbed = Path(sys.argv[1]) if len(sys.argv) > 1 else clone(place / "undisturbed")
    if len(sys.argv) == 1 and begin_study(undisturbed).wait():
        sys.exit("The undisturbed study did not end well.")
    disturbed = clone(place / "disturbed")
    kills = kill_until_finished(disturbed)
    wrong = differing(disturbed, undisturbed)
    print(f"{kills} kills, {finished(disturbed)} runs finished, {len(wrong)} differ from the undisturbed study {wrong}")
    sys.exit(bool(wrong))
