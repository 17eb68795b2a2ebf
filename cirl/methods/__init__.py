"""The methods, by name. The contract, on which the training notebook relies:

method = METHODS[run.method](run, classes)
method.update(x, y, d, epoch) -> dict of floats    one step on a batch of the sources
method.predict(x) -> logits                        at inference
method.features(x) -> r                            the representation that the analyses look at
method.state(), method.restore(state)              everything that a resumed run needs
"""

from cirl.methods.cirl import CIRL
from cirl.methods.deepall import DeepAll

METHODS = {"deepall": DeepAll, "cirl": CIRL}
