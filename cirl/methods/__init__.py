"""The methods, one file each; `table` lists them with their values. The contract, on which the training loop relies:

method = methods.build(run, classes)
method.epochs                                      how long the loop goes on
method.begin_epoch(data, epoch)                    for methods that look at the sources as a whole
method.update(x, y, d, epoch) -> dict of detached    one step on a batch of the sources
method.predict(x) -> logits                        at inference
method.features(x) -> r                            the representation that the analyses look at
method.state(), method.restore(state)              everything that a resumed run needs
"""

from importlib import import_module


def build(run, classes: int):
    """The run's method, ready to train: of `cirl/methods/mmd_aae.py` the class `MMDAAE`, in any case of letters."""
    module = import_module(f"cirl.methods.{run.method_name}")
    (name,) = [name for name in vars(module) if name.lower() == run.method_name.replace("_", "")]
    return getattr(module, name)(run, classes)
