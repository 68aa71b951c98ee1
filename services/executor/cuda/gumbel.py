"""Drawing tokens on the device, in plain torch: the definition of what draw_kernels.py does, and the cutting down.

A token is drawn from softmax(logits / temperature) as the argmax of logits / temperature + Gumbel noise (Gumbel, 1954;
Maddison, Tarlow, Minka: A* sampling, 2014). The noise of a token is a hash of (seed, output index, token), by the mixer
of ../draws.py, so a draw depends on the row's own scores, seed and output index alone, and no generator has any state.
The host's sampler draws from the same distribution by another road, so a seed gives other tokens there.

Nothing here waits for the device: sizes are the host's.
"""

import torch
from torch import Tensor

from services.executor.draws import MASK_64

# What is cut is as unlikely as a finite logit can be: infinities are for rows that have gone wrong.
CUT = torch.finfo(torch.float32).min


def _signed(constant: int) -> int:
    return (constant & MASK_64) - ((constant & (1 << 63)) << 1)


_GOLDEN, _FIRST, _SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shifted(x: Tensor, count: int) -> Tensor:
    """x >> count as if x had no sign."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def token_bits(bits: Tensor, tokens: Tensor) -> Tensor:
    """bits [rows], draws.draw_bits of each row; tokens [n] -> [rows, n], 64 random bits each. All int64."""
    x = bits[:, None] + (tokens + 1) * _GOLDEN
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def draw(logits: Tensor, temperatures: Tensor, bits: Tensor, out: Tensor) -> None:
    """logits [rows, vocab] float32; temperatures [rows], 0 is greedy; bits [rows] int64.

    out: [2, rows] int32, the tokens and whether each row is finite; one that is not draws 0. Of equal scores the lower
    id wins.
    """
    tokens = torch.arange(logits.shape[1], dtype=torch.int64, device=logits.device)
    uniform = (_shifted(token_bits(bits, tokens), 32).float() + 0.5) * 2.0**-32
    noise = -torch.log(-torch.log1p(-uniform.clamp(max=1 - 2.0**-24)))
    is_greedy = (temperatures <= 0)[:, None]
    scores = torch.where(is_greedy, logits, logits / torch.where(is_greedy, 1.0, temperatures[:, None]) + noise)
    is_finite = torch.isfinite(logits).all(-1)
    out[0] = torch.where(is_finite, scores.argmax(-1), 0)
    out[1] = is_finite


def cut(logits: Tensor, rows: Tensor, limits: Tensor) -> None:
    """Leave of some rows what top_k, then top_p, then min_p let pass; the rest becomes CUT. In place.

    rows: [n] int64. limits: [n, 4] float32, temperature, top_k (the vocabulary's size: off), top_p (above 1: off),
    min_p. Of equal logits the lower id goes first, and the best always passes; see ../truncation.py.
    """
    temperature, top_k, top_p, min_p = (column[:, None] for column in limits.unbind(1))
    ordered, ids = logits.index_select(0, rows).sort(dim=-1, descending=True, stable=True)
    weights = torch.exp((ordered - ordered[:, :1]) / temperature)
    place = torch.arange(ordered.shape[1], device=logits.device)
    weights = torch.where(place < top_k, weights, 0.0)
    mass = torch.cumsum(weights, dim=-1, dtype=torch.float64)
    passes = (place < top_k) & (weights >= min_p) & (mass - weights < top_p * mass[:, -1:])
    passes[:, :1].fill_(True)
    kept = torch.where(passes | ~torch.isfinite(ordered), ordered, CUT)
    logits.index_copy_(0, rows, torch.empty_like(kept).scatter_(1, ids, kept))
