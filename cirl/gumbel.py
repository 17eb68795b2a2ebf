r"""The k-hot mask of the adversarial mask module (supplement, Eq. 16).

code          paper
log_z         log of the masker's probability vector z, (B, N); any logits do, a softmax is shift invariant
k             number of draws, floor(kappa N)
temperature   the tau of Eq. 16, 0.5 (the paper uses the letter twice)
"""

import torch
from torch import Tensor

CHUNK = 2**18  # elements of noise at a time, so that the working set stays in the cache


def gumbel_mask(log_z: Tensor, k: int, temperature: float = 0.5) -> Tensor:
    r"""Eq. (16): m_j = max over k independent draws l of softmax_j((log z + xi^l) / T), xi Gumbel noise.

    (B, N) in [0, 1]. Drawn chunk by chunk and differentiated by hand, so that memory does not grow with k."""
    return _GumbelMask.apply(log_z, k, temperature)


def recursive_mask(log_z: Tensor, k: int, temperature: float = 0.5) -> Tensor:
    """What the authors' code draws (ledger, row 2): each draw is fed the previous one as its logits.

    After one draw the masker is forgotten, so this is a random soft dropout. Differentiated by hand as well."""
    return _RecursiveMask.apply(log_z, k, temperature)


DRAWS = {"independent": gumbel_mask, "recursive": recursive_mask}


class _GumbelMask(torch.autograd.Function):
    r"""dm_j / dlog z_i = m_j (delta_ij - p_i) / T, with p the draw that won dimension j.

    The backward pass draws the same noise again from its seed instead of keeping k softmaxes."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        z = torch.softmax(log_z, 1)
        ctx.noise = k, temperature, int(torch.randint(2**62, ()))
        m = torch.zeros_like(z)
        for p in _draws(z, *ctx.noise):
            m = torch.maximum(m, p.amax(0))
        ctx.save_for_backward(z, m)
        return m

    @staticmethod
    def backward(ctx, grad):
        z, m = ctx.saved_tensors
        pull = grad * m  # (B, N)
        push = torch.zeros_like(z)
        for p in _draws(z, *ctx.noise):
            won = torch.where(p == m, pull, 0).sum(2, keepdim=True)  # by each draw, (draws, B, 1)
            push += p.mul_(won).sum(0)
        return (pull - push) / ctx.noise[1], None, None


def _draws(z, k, temperature, seed):
    """k Gumbel-softmax draws, a chunk (draws, B, N) at a time.

    exp((log z + xi) / T) is (z / E)^(1/T) with E = -log(uniform), an exponential variable."""
    generator = torch.Generator(z.device).manual_seed(seed)
    step = max(1, CHUNK // z.numel())
    for first in range(0, k, step):
        shape = (min(step, k - first), *z.shape)
        E = torch.rand(shape, generator=generator, dtype=z.dtype, device=z.device).log_().neg_()
        p = torch.div(z, E.clamp_min_(torch.finfo(z.dtype).tiny), out=E)
        p.div_(p.amax(2, keepdim=True)).pow_(1 / temperature)
        yield p.div_(p.sum(2, keepdim=True))


class _RecursiveMask(torch.autograd.Function):
    """Draw by draw, p <- softmax((p + xi) / T), m the maximum of all.

    Kept is the draw before each chunk; the backward pass repeats a chunk before it goes back through it."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        ctx.k, ctx.temperature, ctx.seed = k, temperature, int(torch.randint(2**62, ()))
        m, p, starts = torch.zeros_like(log_z), log_z, []
        for chunk in range(0, k, _length(log_z)):
            starts.append(p)
            for xi in _gumbel(log_z, ctx, chunk):
                p = torch.softmax(torch.add(xi, p, alpha=1 / temperature), 1)
                torch.maximum(m, p, out=m)
        ctx.save_for_backward(m, *starts)
        return m

    @staticmethod
    def backward(ctx, grad):
        m, *starts = ctx.saved_tensors
        pulled = torch.zeros_like(m)  # the gradient by the draw that is at hand
        for chunk, p in reversed([*zip(range(0, ctx.k, _length(m)), starts, strict=True)]):
            draws = []
            for xi in _gumbel(m, ctx, chunk):
                p = torch.softmax(torch.add(xi, p, alpha=1 / ctx.temperature), 1)
                draws.append(p)
            for p in reversed(draws):
                pulled += torch.where(p == m, grad, 0)
                pulled = p * (pulled - (p * pulled).sum(1, keepdim=True)) / ctx.temperature
        return pulled, None, None


def _length(log_z):
    """Draws in a chunk: a working set that stays in the cache, sixteen at least."""
    return max(16, CHUNK // log_z.numel())


def _gumbel(log_z, ctx, chunk):
    """Gumbel noise over T for the draws of a chunk, the same every time it is asked for."""
    generator = torch.Generator(log_z.device).manual_seed(ctx.seed + chunk)
    shape = (min(_length(log_z), ctx.k - chunk), *log_z.shape)
    E = torch.rand(shape, generator=generator, dtype=log_z.dtype, device=log_z.device).log_().neg_()
    return E.clamp_min_(torch.finfo(E.dtype).tiny).log_().div_(-ctx.temperature)
