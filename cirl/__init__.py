r"""CIRL: Causality Inspired Representation Learning for Domain Generalization (Lv et al., CVPR 2022).

The map of the paper, equation by equation:

    Eq.  4, 5, 6   fourier.amplitude_phase, mix_amplitude, recombine   (intervene: all three at once)
    Eq.  7, 8      losses.invariance, redundancy
    Eq.  9, 10     losses.correlation_matrix, factorization_loss
    Eq. 11         losses.classification_loss
    Eq. 12         model.Masker.forward
    Eq. 13, 14     losses.masked_losses, objectives
    Eq. 15         losses.z_score
    Eq. 16         gumbel.independent   (gumbel_mask: the same, faster)
    Sec. 4.4       metrics.independence_degree, representation_importance

To use: `cirl.load` (a finished run as a model: `run.trained`), `cirl.CIRLLoss` (in any loop: `methods.criterion`).

Below: `methods` (one file per method), `run` (what a run is and how it resumes), `data` (from a data set to batches),
`study` (which runs an item, a figure or table, needs, and their records), `show` (tables and figures), `analysis`
(beyond the paper). The package holds nouns; the notebooks hold verbs (train, compare, plot).
"""

from importlib import import_module

_MODULES = (
    *("fourier", "gumbel", "losses", "metrics", "model", "errors", "paths"),
    *("methods", "run", "data", "study", "show", "analysis"),
)
_OBJECTS = {"load": "cirl.run.trained", "CIRLLoss": "cirl.methods.criterion"}


def __getattr__(name: str):
    """`cirl.losses` and the others after `import cirl`, loaded when first used: torch takes seconds."""
    if name in _MODULES:
        return import_module(f"cirl.{name}")
    if name in _OBJECTS:
        return getattr(import_module(_OBJECTS[name]), name)
    raise AttributeError(f"module 'cirl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, *_OBJECTS])
