"""The methods, one file each; `table` lists them with their values. The contract, on which the training loop relies:

method = methods.build(run, classes)
method.epochs                                      number of epochs of the training loop
method.begin_epoch(data, epoch)                    for methods that need all source images
method.update(x, y, d, epoch) -> dict of terms     one step on a batch of the sources
method.predict(x) -> logits                        at inference
method.features(x) -> r                            the representation that the analyses use
method.state(), method.restore(state)              everything that a resumed run needs
"""

from importlib import import_module


def build(run, classes: int):
    """The run's method, ready to train, for example `MMDAAE` of `cirl/methods/mmd_aae.py`; case is ignored."""
    module = import_module(f"cirl.methods.{run.method_name}")
    (name,) = [name for name in vars(module) if name.lower() == run.method_name.replace("_", "")]
    return getattr(module, name)(run, classes)
