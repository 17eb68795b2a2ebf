"""The methods, by name. The contract, on which the training notebook relies:

method = METHODS[run.method_name](run, classes)
method.epochs                                      how long the loop goes on
method.begin_epoch(data, epoch)                    for those who look at the sources as a whole
method.update(x, y, d, epoch) -> dict of floats    one step on a batch of the sources
method.predict(x) -> logits                        at inference
method.features(x) -> r                            the representation that the analyses look at
method.state(), method.restore(state)              everything that a resumed run needs
"""

from cirl.methods.ccsa import CCSA
from cirl.methods.cirl import CIRL
from cirl.methods.coral import CORAL
from cirl.methods.crossgrad import CrossGrad
from cirl.methods.csd import CSD
from cirl.methods.deepall import DeepAll
from cirl.methods.fact import FACT
from cirl.methods.groupdro import GroupDRO
from cirl.methods.jigen import JiGen
from cirl.methods.matchdg import MatchDG
from cirl.methods.mix import Mix
from cirl.methods.mixstyle import MixStyle
from cirl.methods.mixup import Mixup
from cirl.methods.mldg import MLDG
from cirl.methods.mmd import MMD
from cirl.methods.mtl import MTL
from cirl.methods.rsc import RSC
from cirl.methods.sagnet import SagNet

METHODS = {
    **{"deepall": DeepAll, "mix": Mix, "cirl": CIRL, "fact": FACT, "matchdg": MatchDG},
    **{"coral": CORAL, "mmd": MMD, "mixup": Mixup, "groupdro": GroupDRO, "mtl": MTL, "csd": CSD, "ccsa": CCSA},
    **{"rsc": RSC, "crossgrad": CrossGrad, "jigen": JiGen, "sagnet": SagNet, "mldg": MLDG, "mixstyle": MixStyle},
}
