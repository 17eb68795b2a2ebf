r"""The k-hot mask of the adversarial mask module (supplement, Eq. 16).

code          paper
log_z         log of the masker's probability vector z, (B, N); any logits do, a softmax is shift invariant
k             number of draws, floor(kappa N)
temperature   the tau of Eq. 16, 0.5 (the paper uses the letter twice)

A Gumbel variable is -log E with E = -log U, U uniform, so exp((log z + xi) / T) is (z / E)^(1/T), and one draw p is
q^2 with q = (z / E)^(1/2T) scaled to length one. All draws of a few images at a time, so that they stay in the cache.
"""

import math

import numpy as np
import torch
from torch import Tensor

CHUNK = 2**18  # numbers at a time
KEEP = 2**25  # numbers that may be kept for the backward pass; beyond, the noise is drawn again from its seed


def gumbel_mask(log_z: Tensor, k: int, temperature: float = 0.5) -> Tensor:
    r"""Eq. (16): m_j = max over k independent draws l of softmax_j((log z + xi^l) / T), xi Gumbel noise.

    (B, N) in [0, 1]; differentiated by hand."""
    return _GumbelMask.apply(log_z, k, temperature)


def recursive_mask(log_z: Tensor, k: int, temperature: float = 0.5) -> Tensor:
    """What the authors' code draws (ledger, row 2): each draw is fed the previous one as its logits.

    After one draw the masker is forgotten, so this is a random soft dropout. Differentiated by hand as well."""
    return _RecursiveMask.apply(log_z, k, temperature)


DRAWS = {"independent": gumbel_mask, "recursive": recursive_mask}


class _GumbelMask(torch.autograd.Function):
    r"""dm_j / dlog z_i = m_j (delta_ij - p_i) / T, with p the draw that won dimension j."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        z = torch.softmax(log_z, 1)
        ctx.k, ctx.temperature, ctx.seed = k, temperature, _new_seed()
        keep, ctx.draws, best = k * z.numel() <= KEEP, [], torch.empty_like(z)
        for rows in _chunks(z, k):
            q = _draws(z, rows, ctx)
            torch.amax(q, 1, out=best[rows])
            ctx.draws += [q] * keep
        ctx.save_for_backward(z, best)
        return best.square()

    @staticmethod
    def backward(ctx, grad):
        z, best = ctx.saved_tensors
        pull, push = grad * best.square(), torch.empty_like(z)
        for i, rows in enumerate(_chunks(z, ctx.k)):
            q = ctx.draws[i] if ctx.draws else _draws(z, rows, ctx)
            winners = torch.ge(q, best[rows, None], out=torch.empty_like(q))  # ones and zeros, (images, k, N)
            won = torch.bmm(winners, pull[rows, :, None])  # what each draw has won, (images, k, 1)
            torch.bmm(won.mT, torch.mul(q, q, out=winners), out=push[rows, None])
        return (pull - push) / ctx.temperature, None, None


def _chunks(z, k):
    """A few images at a time."""
    size = max(1, CHUNK // (k * z.shape[1]))
    return [slice(first, min(first + size, len(z))) for first in range(0, len(z), size)]


def _draws(z, rows, ctx):
    """q of k draws for some of the images, (images, k, N)."""
    z = -z[rows, None]
    log_U = _log_uniform((len(z), ctx.k, z.shape[2]), z, ctx.seed + rows.start)
    return _unit(_root(torch.div(z, log_U, out=log_U), ctx.temperature))


class _RecursiveMask(torch.autograd.Function):
    """Draw by draw, p <- softmax((p + xi) / T), m the maximum of all.

    Kept are all draws, or where they are too many the one before each run of them: the backward pass then repeats a run
    before it goes back through it."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        ctx.k, ctx.temperature, ctx.seed = k, temperature, _new_seed()
        m, p, runs = torch.zeros_like(log_z), log_z - log_z.amax(1, keepdim=True), _runs(log_z, k)
        keep, ctx.draws, starts = k * log_z.numel() <= KEEP, [], log_z.new_empty((len(runs), *log_z.shape))
        for i, run in enumerate(runs):
            starts[i] = p
            for draw in _recursion(p, run, ctx):
                p = draw
                torch.maximum(m, p, out=m)
                ctx.draws += [p] * keep
        ctx.save_for_backward(m, starts)
        return m

    @staticmethod
    def backward(ctx, grad):
        m, starts = ctx.saved_tensors
        pulled, winners = torch.zeros_like(m), torch.empty_like(m)  # the gradient by the draw that is at hand; its wins
        for i, run in reversed([*enumerate(_runs(m, ctx.k))]):
            draws = ctx.draws[run.start : run.stop] if ctx.draws else [*_recursion(starts[i], run, ctx)]
            for p in reversed(draws):
                pulled.addcmul_(torch.eq(p, m, out=winners), grad)
                pulled -= torch.bmm(p[:, None], pulled[..., None]).squeeze(2)
                pulled.mul_(p).div_(ctx.temperature)
        return pulled, None, None


def _runs(m, k):
    """The draws in runs whose working set stays in the cache, sixteen at least."""
    length = max(16, CHUNK // m.numel())
    return [range(first, min(first + length, k)) for first in range(0, k, length)]


def _recursion(p, run, ctx):
    """The draws of a run, each from the one before."""
    for log_U in _log_uniform((len(run), *p.shape), p, ctx.seed + run.start):
        p = _unit(_root(torch.div(-p.exp(), log_U, out=log_U), ctx.temperature)).square_()
        yield p


def _new_seed():
    return int(torch.randint(2**62, ()))


def _log_uniform(shape, like, seed):
    """log U = -E, a function of the seed; never zero, since U is below one."""
    if like.device.type == "cpu":
        U = _uniform_on_cpu(shape, like.dtype, seed)
    else:
        generator = torch.Generator(like.device).manual_seed(seed)
        U = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
    return U.log_()


def _uniform_on_cpu(shape, dtype, seed):
    """In [0, 1), from the bits of numpy's generator as they come: a third of the time of either library's floats."""
    count, width = math.prod(shape), dtype.itemsize
    bits = np.random.SFC64(seed).random_raw(math.ceil(count * width / 8)).view(f"i{width}")[:count]
    below_one = 1 - torch.finfo(dtype).eps
    signed = torch.from_numpy(bits).view(shape)
    return torch.mul(signed, 2.0 ** (-8 * width) * below_one, out=torch.empty(shape, dtype=dtype)).add_(0.5)


def _root(ratio, temperature):
    """To the power 1/2T; brought below one first, unless the power is one."""
    return ratio if temperature == 0.5 else ratio.div_(ratio.amax(-1, keepdim=True)).pow_(0.5 / temperature)


def _unit(q):
    """Scaled to length one along the last dimension."""
    return q.mul_(torch.linalg.vector_norm(q, dim=-1, keepdim=True).reciprocal_())
