from helpers import assert_minimises, batch, before, make, steps_of
from torch.nn.functional import cross_entropy


def test_deepall_minimises_the_cross_entropy_of_the_originals():
    learner = make("deepall")
    twin, (x, y, _) = before(learner), batch()
    expected = cross_entropy(twin.h1(twin.encoder(x)), y)
    terms, (step,) = steps_of(learner, batch(), epoch=0)
    assert terms == {"loss": expected.item()}
    assert_minimises(step, twin, expected)
