"""papermill as the Snakefile starts it: `python -m cirl.run.execute` in place of `papermill`, in a third of the time.

nbformat imports jsonschema, and that builds a grammar of addresses in any script (rfc3987_syntax, which comes with
JupyterLab): two thirds of papermill's start. No notebook is checked for such addresses; jsonschema does without it."""

import sys

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # importing it now raises ImportError, as jsonschema expects

from papermill.cli import papermill  # noqa: E402 (after the line above)

if __name__ == "__main__":
    papermill(prog_name="papermill")
