r"""The masks of `gumbel`, drawn and differentiated fast: the same distribution and the same gradient.

A Gumbel variable is -log E with E = -log U, U uniform, so exp((log z + xi) / T) is (z / E)^(1/T), and one draw p is
q^2 with q = (z / E)^(1/2T) scaled to length one. The draws are made in tiles that stay in the cache.
"""

import math

import numpy as np
import torch

TILE = 2**18  # numbers that are drawn at a time: few enough for the cache
KEEP = 3 * 2**24  # numbers that are kept for the backward pass, 200 MB; it draws the others again from their seeds


class _GumbelMask(torch.autograd.Function):
    r"""dm_j / dlog z_i = m_j (delta_ij - p_i) / T, with p the draw that won dimension j."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        z = torch.softmax(log_z, 1)
        ctx.k, ctx.temperature, ctx.seed, ctx.room, ctx.kept = k, temperature, _new_seed(), KEEP, []
        best = torch.zeros_like(z)
        for rows, draws in _tiles(z, k):
            q = _draws(z, rows, draws, ctx)
            torch.maximum(best[rows], q.amax(1), out=best[rows])
            _keep(ctx, q, q.numel())
        ctx.save_for_backward(z, best)
        return best.square()

    @staticmethod
    def backward(ctx, grad):
        z, best = ctx.saved_tensors
        pull, push = grad * best.square(), torch.zeros_like(z)
        for i, (rows, draws) in enumerate(_tiles(z, ctx.k)):
            q = ctx.kept[i] if i < len(ctx.kept) else _draws(z, rows, draws, ctx)
            winners = torch.ge(q, best[rows, None], out=torch.empty_like(q))  # ones and zeros, (images, draws, N)
            won = torch.bmm(winners, pull[rows, :, None])  # what each draw has won, (images, draws, 1)
            push[rows, None] += torch.bmm(won.mT, torch.mul(q, q, out=winners))
        return (pull - push) / ctx.temperature, None, None


def _tiles(z, k):
    """All draws of a few images at a time, or some of the draws of one image."""
    images, draws = max(1, TILE // (k * z.shape[1])), max(1, TILE // z.shape[1])
    return [(rows, some) for rows in _parts(len(z), images) for some in _parts(k, draws)]


def _draws(z, rows, draws, ctx):
    """q of some draws for some of the images, (images, draws, N)."""
    B, N = z.shape
    z = -z[rows, None]
    log_U = _log_uniform((len(z), draws.stop - draws.start, N), z, ctx.seed + rows.start + B * draws.start)
    return _unit(_root(torch.div(z, log_U, out=log_U), ctx.temperature))


class _RecursiveMask(torch.autograd.Function):
    """p <- softmax((p + xi) / T), draw by draw; m is the maximum of all draws.

    The draws are taken in segments. The start of each is kept, so that the backward pass can draw it again."""

    @staticmethod
    def forward(ctx, log_z, k, temperature):
        ctx.k, ctx.temperature, ctx.seed, ctx.room, ctx.kept = k, temperature, _new_seed(), KEEP, []
        m, last, starts = torch.zeros_like(log_z), log_z - log_z.amax(1, keepdim=True), []
        for rows, draws in _segments(log_z, k):
            starts.append(last[rows].clone())
            segment = []
            for p in _recursion(starts[-1], rows, draws, ctx):
                torch.maximum(m[rows], p, out=m[rows])
                segment.append(p)
            last[rows] = segment[-1]
            _keep(ctx, segment, len(segment) * last[rows].numel())
        ctx.save_for_backward(m, *starts)
        return m

    @staticmethod
    def backward(ctx, grad):
        m, *starts = ctx.saved_tensors
        gradient = torch.zeros_like(m)  # by the current draw
        for i, (rows, draws) in reversed([*enumerate(_segments(m, ctx.k))]):
            segment = ctx.kept[i] if i < len(ctx.kept) else [*_recursion(starts[i], rows, draws, ctx)]
            pulled, winners = gradient[rows], torch.empty_like(m[rows])
            for p in reversed(segment):
                pulled.addcmul_(torch.eq(p, m[rows], out=winners), grad[rows])
                pulled -= torch.bmm(p[:, None], pulled[..., None]).squeeze(2)
                pulled.mul_(p).div_(ctx.temperature)
        return gradient, None, None


def _segments(m, k):
    """At least sixteen draws of as many images as fit into four tiles, and as many draws as fit into one."""
    images = min(len(m), max(1, 4 * TILE // (16 * m.shape[1])))
    draws = max(16, TILE // (images * m.shape[1]))
    return [(rows, some) for rows in _parts(len(m), images) for some in _parts(k, draws)]


def _recursion(p, rows, draws, ctx):
    """Some draws for some of the images, each from the one before."""
    shape = (draws.stop - draws.start, *p.shape)
    for log_U in _log_uniform(shape, p, ctx.seed + ctx.k * rows.start + draws.start):
        p = _unit(_root(torch.div(-p.exp(), log_U, out=log_U), ctx.temperature)).square_()
        yield p


def _parts(count, length):
    return [slice(first, min(first + length, count)) for first in range(0, count, length)]


def _keep(ctx, drawn, numbers):
    """Keep what was drawn for the backward pass while there is room; after the first without room, none."""
    ctx.room -= numbers
    if ctx.room >= 0:
        ctx.kept.append(drawn)


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
    return torch.from_numpy(bits).view(shape).to(dtype).mul_(2.0 ** (-8 * width) * below_one).add_(0.5)


def _root(ratio, temperature):
    """To the power 1/2T; scaled to at most one first, unless the power is one."""
    return ratio if temperature == 0.5 else ratio.div_(ratio.amax(-1, keepdim=True)).pow_(0.5 / temperature)


def _unit(q):
    """Scaled to length one along the last dimension."""
    return q.mul_(torch.linalg.vector_norm(q, dim=-1, keepdim=True).reciprocal_())
