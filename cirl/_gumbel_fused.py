r"""The masks of `gumbel`, drawn and differentiated fast: the same distribution and the same gradient.

A Gumbel variable is -log E with E = -log U, U uniform, so exp((log z + xi) / T) is (z / E)^(1/T), and one draw p is
q^2 with q = (z / E)^(1/2T) scaled to length one. The images are taken a few at a time, so that their
draws stay in the cache.
"""

import math

import numpy as np
import torch

CHUNK = 2**18  # numbers at a time
KEEP = 2**25  # numbers that may be kept for the backward pass; beyond, the noise is drawn again from its seed


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
    """p <- softmax((p + xi) / T), draw by draw; m is the maximum of all draws.

    All draws are kept for the backward pass. If that takes too much memory, only the start of each segment is
    kept, and the backward pass draws each segment again."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        ctx.k, ctx.temperature, ctx.seed = k, temperature, _new_seed()
        ctx.draws, keep, starts = [], k * log_z.numel() <= KEEP, []
        m, p = torch.zeros_like(log_z), log_z - log_z.amax(1, keepdim=True)
        for segment in _segments(log_z, k):
            starts.append(p.clone())
            draws = _recursion(p, segment, ctx)
            for p in draws:
                torch.maximum(m, p, out=m)
                if keep:
                    ctx.draws.append(p)
        ctx.save_for_backward(m, *starts)
        return m

    @staticmethod
    def backward(ctx, grad):
        m, *starts = ctx.saved_tensors
        pulled, winners = torch.zeros_like(m), torch.empty_like(m)  # the gradient by the current draw; where it won
        for start, segment in reversed([*zip(starts, _segments(m, ctx.k), strict=True)]):
            draws = ctx.draws[segment.start : segment.stop] or [*_recursion(start, segment, ctx)]
            for p in reversed(draws):
                pulled.addcmul_(torch.eq(p, m, out=winners), grad)
                pulled -= torch.bmm(p[:, None], pulled[..., None]).squeeze(2)
                pulled.mul_(p).div_(ctx.temperature)
        return pulled, None, None


def _segments(m, k):
    """The draws in segments whose working set stays in the cache, at least sixteen draws each."""
    length = max(16, CHUNK // m.numel())
    return [range(first, min(first + length, k)) for first in range(0, k, length)]


def _recursion(p, segment, ctx):
    """The draws of a segment, each from the one before."""
    for log_U in _log_uniform((len(segment), *p.shape), p, ctx.seed + segment.start):
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
    """Uniform in [0, 1) from the raw bits of numpy's generator: three times as fast as the floats of either library."""
    count, width = math.prod(shape), dtype.itemsize
    bits = np.random.SFC64(seed).random_raw(math.ceil(count * width / 8)).view(f"i{width}")[:count]
    below_one = 1 - torch.finfo(dtype).eps
    signed = torch.from_numpy(bits).view(shape)
    return torch.mul(signed, 2.0 ** (-8 * width) * below_one, out=torch.empty(shape, dtype=dtype)).add_(0.5)


def _root(ratio, temperature):
    """To the power 1/2T; scaled to at most one first, unless the power is one."""
    return ratio if temperature == 0.5 else ratio.div_(ratio.amax(-1, keepdim=True)).pow_(0.5 / temperature)


def _unit(q):
    """Scaled to length one along the last dimension."""
    return q.mul_(torch.linalg.vector_norm(q, dim=-1, keepdim=True).reciprocal_())
