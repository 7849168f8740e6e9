"""Unlearning objectives as pure functions of tensors; a trainer adds ``gamma * forget + alpha * retain``.

Shapes: B rows, T positions, V vocabulary entries, d hidden units. ``labels`` hold -100 where nothing is learned
and are shifted here (position t predicts label t + 1). ``S`` is the summed negative log-likelihood (nats) of a row's
labelled tokens, ``n`` their number. Half precision is computed in float32, float64 stays float64. No reference
receives a gradient. ``selected_*`` take the logits of the N labelled positions alone, so that no others are ever made.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100


def token_nll(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """``-log p(y_t | y_<t)`` and the mask: logits [B, T, V], labels [B, T] -> (nll [B, T-1], bool [B, T-1]).

    0 where unlabelled. Only labelled positions are computed.
    """
    mask, targets = shifted(labels)
    return scattered(selected_nll(logits[:, :-1][mask], targets), mask), mask


def selected_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """``-log p(y)``: logits [N, V], targets [N] -> [N]."""
    return F.cross_entropy(_at_least_float32(logits), targets, reduction="none")


def sequence_nll(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """``S_i = -sum_t log p(y_t | y_<t)`` and ``n_i``: logits [B, T, V], labels [B, T] -> (S [B], n [B] as int64).

    A row without a labelled token has S = 0 and n = 0.
    """
    nll, mask = token_nll(logits, labels)
    return nll.sum(dim=1), mask.sum(dim=1)


def grad_ascent(nll_sum: Tensor, n_tokens: Tensor) -> Tensor:
    """``-sum_i S_i / sum_i n_i``: nll_sum [B], n_tokens [B] -> scalar.

    Raises ValueError where no row has a labelled token.
    Source: Jang et al. 2023 (Knowledge Unlearning); with descent on the retain set, ConceptGuard's section 5.1.
    """
    _require_tokens(n_tokens)
    return -nll_sum.sum() / n_tokens.sum()


def npo(nll_sum: Tensor, ref_nll_sum: Tensor, beta: float) -> Tensor:
    """``-(2/beta) mean_i log sigmoid(beta (S_i - S_i^ref))``: nll_sum [B], ref_nll_sum [B] -> scalar.

    (2/beta) ln 2 where the policy is the reference.
    Source: Zhang et al. 2024 (Negative Preference Optimization).
    """
    margin = nll_sum - ref_nll_sum.detach()
    return -2 / beta * F.logsigmoid(beta * margin).mean()


def simnpo(nll_sum: Tensor, n_tokens: Tensor, beta: float, delta: float) -> Tensor:
    """``-(2/beta) mean_i log sigmoid(beta (S_i / n_i - delta))``: nll_sum [B], n_tokens [B] -> scalar.

    The paper's margin gamma is ``beta * delta``. Raises ValueError for a row without a labelled token, naming it.
    Source: Fan et al. 2024 (SimNPO).
    """
    _require_tokens_in_every_row(n_tokens)
    return -2 / beta * F.logsigmoid(beta * (nll_sum / n_tokens - delta)).mean()


def dpo(nll_w: Tensor, ref_nll_w: Tensor, nll_l: Tensor, ref_nll_l: Tensor, beta: float) -> Tensor:
    """``-(2/beta) mean_i log sigmoid(beta (D_l - D_w))`` with ``D = S - S^ref``: four times [B] -> scalar.

    w is the preferred completion (a refusal), l the one to forget. The factor 2/beta is NPO's, so that the two compare.
    Source: Rafailov et al. 2023 (DPO), as a forget objective in Zhang et al. 2024.
    """
    shift_w, shift_l = nll_w - ref_nll_w.detach(), nll_l - ref_nll_l.detach()
    return -2 / beta * F.logsigmoid(beta * (shift_l - shift_w)).mean()


def undial(logits: Tensor, ref_logits: Tensor, labels: Tensor, strength: float) -> Tensor:
    """Cross-entropy with the teacher ``softmax(z_ref - strength * onehot(y))``, mean over labelled tokens.

    logits, ref_logits [B, T, V], labels [B, T] -> scalar. Raises ValueError where no token is labelled.
    Source: Dong et al. 2024 (UNDIAL).
    """
    mask, targets = shifted(labels)
    _require_tokens(mask)
    return selected_undial(logits[:, :-1][mask], ref_logits[:, :-1][mask], targets, strength)


def selected_undial(logits: Tensor, ref_logits: Tensor, targets: Tensor, strength: float) -> Tensor:
    """:func:`undial` of labelled positions: logits, ref_logits [N, V], targets [N] -> scalar."""
    teacher = _at_least_float32(ref_logits.detach())
    lowered = teacher.scatter_add(
        1, targets[:, None], torch.full_like(targets[:, None], -strength, dtype=teacher.dtype)
    )
    return -(torch.softmax(lowered, dim=-1) * _log_softmax(logits)).sum(dim=-1).mean()


def rmu_forget(hidden: Tensor, control: Tensor, mask: Tensor) -> Tensor:
    """``mean_i mean_{t in mask} mean_d (h - c)^2``: hidden [B, T, d], control [d], mask [B, T] -> scalar.

    The mask is not shifted: it says which hidden states count. Raises ValueError for a row without one, naming it.
    Source: Li et al. 2024 (WMDP), forget loss of RMU.
    """
    return _masked_square(hidden, control.detach().expand_as(hidden), mask)


def rmu_retain(hidden: Tensor, ref_hidden: Tensor, mask: Tensor) -> Tensor:
    """As :func:`rmu_forget` against the frozen model's states ref_hidden [B, T, d].

    Source: Li et al. 2024 (WMDP), retain loss of RMU.
    """
    return _masked_square(hidden, ref_hidden.detach(), mask)


def kl(logits: Tensor, ref_logits: Tensor, labels: Tensor) -> Tensor:
    """``KL(ref || theta)`` in nats, mean over labelled tokens: logits, ref_logits [B, T, V], labels [B, T] -> scalar.

    Raises ValueError where no token is labelled. Source: Maini et al. 2024 (TOFU), KL minimisation on the retain set.
    """
    mask, _ = shifted(labels)
    _require_tokens(mask)
    return selected_kl(logits[:, :-1][mask], ref_logits[:, :-1][mask])


def selected_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """:func:`kl` of labelled positions: logits, ref_logits [N, V] -> scalar."""
    log_ref = _log_softmax(ref_logits.detach())
    return F.kl_div(_log_softmax(logits), log_ref, reduction="none", log_target=True).sum(dim=-1).mean()


def wga(nll_tokens: Tensor, mask: Tensor, beta: float) -> Tensor:
    """``-mean(p^beta * CE)`` over masked tokens, ``p = exp(-CE)`` held fixed: nll_tokens, mask [B, T-1] -> scalar.

    :func:`token_nll` gives both. Raises ValueError where no token is masked in.
    Source: Wang et al. 2025 (weighted gradient ascent).
    """
    _require_tokens(mask)
    nll = _at_least_float32(nll_tokens[mask.bool()])
    return -(torch.exp(-beta * nll.detach()) * nll).mean()


def shifted(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mask [B, T-1] of positions that predict a label, and those labels [N] in row order."""
    following = labels[:, 1:]
    mask = following != IGNORED
    return mask, following[mask]


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(_at_least_float32(logits), dim=-1)


def scattered(values: Tensor, mask: Tensor) -> Tensor:
    """Values [N] back at their places in mask [B, T], 0 elsewhere; its sums, unlike index_add, repeat on a GPU."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def _masked_square(hidden: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    chosen = mask.bool()
    counts = chosen.sum(dim=1)
    _require_tokens_in_every_row(counts)
    # Selected before the subtraction: padding may hold anything, and 0 * inf in a product with the mask is NaN.
    difference = _at_least_float32(hidden[chosen]) - _at_least_float32(target[chosen])
    return (scattered(difference.square().mean(dim=-1), chosen).sum(dim=1) / counts).mean()


def _require_tokens(counts: Tensor) -> None:
    if not bool(counts.any()):
        raise ValueError(f"no labelled token in any of the {len(counts)} rows: their mean loss is not defined")


def _require_tokens_in_every_row(n_tokens: Tensor) -> None:
    empty = (n_tokens == 0).nonzero().flatten().tolist()
    if empty:
        rows = ", ".join(map(str, empty))
        raise ValueError(f"no labelled token in row {rows} of {len(n_tokens)} (from 0): its mean loss is not defined")
