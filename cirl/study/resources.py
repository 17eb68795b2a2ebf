"""The resources of a run's cluster job, by data set and backbone, and which runs are short enough to share a job.

The times of tiny and Digits-DG are about four times those measured on one CPU core; those with a GPU are estimates.
"""

from cirl.run.config import Run

ON_CPU = ("tiny", "digits_dg")
MINUTES = {"tiny": 4, "digits_dg": 12, "pacs": 10, "officehome": 20, "minidomainnet": 60}  # of an epoch
DAY = 24 * 60  # the limit of most partitions; a longer run resumes in its next job


def resources(run: Run) -> dict[str, int]:
    """GPUs, megabytes of memory and minutes; a folder of images is assumed to be as large as PACS."""
    minutes = MINUTES.get(run.dataset, MINUTES["pacs"]) * run.epochs * (2 if run.backbone == "resnet50" else 1)
    gpu = int(run.dataset not in ON_CPU)
    return {"gpu": gpu, "mem_mb": 16000 if gpu else 4000, "runtime": min(10 + minutes, DAY)}


def group(run: Run) -> str | None:
    """The name of the group whose runs share a job, as many as the profile allows; None for a separate job."""
    return "short" if run.dataset == "tiny" else None
