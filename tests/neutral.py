"""Show that a change of the code is neutral: every run of every study has the training digest that it had at a commit.

    python tests/neutral.py <commit>

Prints the runs whose digest differs; the exit code is 1 if there are any. A move of modules must print none.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIGESTS = """
import json, os
if os.path.isdir("cirl/run"):
    from cirl.run.digest import training_digest
    from cirl.study.catalog import all_runs
    from cirl.study.studies import STUDIES
else:  # the layout before this one
    from cirl.digest import training_digest
    from cirl.grid import all_runs
    from cirl.studies import STUDIES
print(json.dumps({run.id: training_digest(run) for study in STUDIES for run in all_runs(study, True)}))
"""


def digests(root: Path) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", DIGESTS], cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def main() -> int:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(["git", "-C", ROOT, "archive", sys.argv[1], "cirl"], capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", scratch], input=archive.stdout, check=True)
        before = digests(Path(scratch))
    after = digests(ROOT)
    different = [run for run, digest in after.items() if before.get(run, digest) != digest]
    print("\n".join(different))
    print(
        f"{len(after)} runs, {len(different)} differ, {len(after.keys() - before.keys())} are new since {sys.argv[1]}"
    )
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
