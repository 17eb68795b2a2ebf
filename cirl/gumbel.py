r"""The k-hot mask of the adversarial mask module (supplement, Eq. 16).

code          paper
log_z         log of the masker's probability vector z, (B, N); any logits do, a softmax is shift invariant
k             number of draws, floor(kappa N)
temperature   the tau of Eq. 16, 0.5 (the paper uses the letter twice)

A Gumbel variable is -log E with E = -log U, U uniform, so exp((log z + xi) / T) is (z / E)^(1/T), and one draw p is
q^2 with q = (z / E)^(1/2T) scaled to length one. All draws of a few images at a time, so that they stay in the cache.
"""

import numpy as np
import torch
from torch import Tensor

CHUNK = 2**17  # numbers at a time
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
        chunks = [*z.split(max(1, CHUNK // (k * z.shape[1])))]
        draws = (_draws(part, ctx, i) for i, part in enumerate(chunks))
        ctx.draws = [*draws] if k * z.numel() <= KEEP else None
        best = torch.cat([q.amax(1) for q in ctx.draws or draws])
        ctx.save_for_backward(best, *chunks)
        return best.square()

    @staticmethod
    def backward(ctx, grad):
        best, *chunks = ctx.saved_tensors
        pull, pushes, first = grad * best.square(), [], 0
        for i, part in enumerate(chunks):
            q = ctx.draws[i] if ctx.draws else _draws(part, ctx, i)
            rows = slice(first, first + len(part))
            image, draw, j = (q >= best[rows, None]).nonzero(as_tuple=True)
            won = q.new_zeros(q.shape[:2]).index_put_((image, draw), pull[rows][image, j], accumulate=True)
            pushes.append(torch.bmm(won[:, None], q.square()).squeeze(1))
            first += len(part)
        return (pull - torch.cat(pushes)) / ctx.temperature, None, None


def _draws(z, ctx, chunk):
    """q of k draws for each image of a chunk, (images, k, N)."""
    E = _exponential((len(z), ctx.k, z.shape[1]), z, ctx.seed + chunk)
    return _unit(_root(torch.div(z[:, None], E, out=E), ctx.temperature))


class _RecursiveMask(torch.autograd.Function):
    """Draw by draw, p <- softmax((p + xi) / T), m the maximum of all.

    Kept are all draws, or where they are too many the one before each run of them: the backward pass then repeats a run
    before it goes back through it."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        ctx.k, ctx.temperature, ctx.seed = k, temperature, _new_seed()
        m, p, starts = torch.zeros_like(log_z), log_z - log_z.amax(1, keepdim=True), []
        ctx.draws = [] if k * log_z.numel() <= KEEP else None
        for run in range(0, k, _length(log_z)):
            starts.append(p)
            for draw in _recursion(p, ctx, run):
                p = draw
                torch.maximum(m, p, out=m)
                if ctx.draws is not None:
                    ctx.draws.append(p)
        ctx.save_for_backward(m, *starts)
        return m

    @staticmethod
    def backward(ctx, grad):
        m, *starts = ctx.saved_tensors
        pulled = torch.zeros_like(m)  # the gradient by the draw that is at hand
        for run, start in reversed([*zip(range(0, ctx.k, _length(m)), starts, strict=True)]):
            draws = ctx.draws[run : run + _length(m)] if ctx.draws else [*_recursion(start, ctx, run)]
            for p in reversed(draws):
                pulled += torch.where(p == m, grad, 0)
                pulled -= torch.linalg.vecdot(p, pulled).unsqueeze(1)
                pulled.mul_(p).div_(ctx.temperature)
        return pulled, None, None


def _length(log_z):
    """Draws in a run: a working set that stays in the cache, sixteen at least."""
    return max(16, CHUNK // log_z.numel())


def _recursion(p, ctx, run):
    """The draws of a run, each from the one before."""
    count = min(_length(p), ctx.k - run)
    for E in _exponential((count, *p.shape), p, ctx.seed + run):
        p = _unit(_root(torch.div(p.exp(), E, out=E), ctx.temperature)).square_()
        yield p


def _new_seed():
    return int(torch.randint(2**62, ()))


def _exponential(shape, like, seed):
    """-log U, a function of the seed; never zero, since U is below one."""
    if like.device.type == "cpu":  # numpy's generator takes half the time of torch's there
        kind = np.float64 if like.dtype == torch.float64 else np.float32
        U = torch.from_numpy(np.random.Generator(np.random.PCG64(seed)).random(shape, kind))
    else:
        generator = torch.Generator(like.device).manual_seed(seed)
        U = torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)
    return U.log_().neg_()


def _root(ratio, temperature):
    """To the power 1/2T; brought below one first, unless the power is one."""
    return ratio if temperature == 0.5 else ratio.div_(ratio.amax(-1, keepdim=True)).pow_(0.5 / temperature)


def _unit(q):
    """Scaled to length one along the last dimension."""
    return q.mul_(torch.linalg.vecdot(q, q).rsqrt_().unsqueeze(-1))
