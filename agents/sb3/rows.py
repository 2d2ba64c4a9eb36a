"""Layers for sets of rows: shared by all rows of a kind, attention between rows, and pooling."""

from __future__ import annotations

from typing import Any

from kvgym.errors import ConfigError

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise ConfigError(f'kvgym.agents.sb3.rows needs PyTorch: pip install "kvgym[train]" ({error})') from error


class RowNet(nn.Module):
    """Layers shared by all rows of a kind.

    Args:
        num_features: F, features per row.
        row_dim: d, size of the features computed per row.
        context_dim: h, size of the context; None leaves :meth:`score` out.
    """

    def __init__(self, num_features: int, row_dim: int, context_dim: int | None) -> None:
        super().__init__()
        self.row_dim = row_dim
        self.first = nn.Linear(num_features, row_dim)
        self.second = nn.Linear(row_dim, row_dim)
        self.scored = context_dim is not None
        if context_dim is not None:
            self.mix = nn.Linear(row_dim + context_dim, row_dim)
            self.out = nn.Linear(row_dim, 1)

    def embed(self, rows: Tensor, present: Tensor) -> Tensor:
        """Return e, float32 (B, R, d), of rows (B, R, F); ``present`` (B, R) is 0 or 1."""
        # Flatten the rows: changing a view in place makes its gradient slow.
        x = self.first(rows.flatten(0, 1)).relu_()
        # Values far below zero are exactly zero after the ReLU, so gradients need no mask.
        absent = (present - 1.0) * 1e9
        e: Tensor = self.second(x).add_(absent.reshape(-1, 1)).relu_()
        return e.view(*present.shape, self.row_dim)

    def score(self, e: Tensor, c: Tensor, present: Tensor) -> Tensor:
        """Return linear(u), float32 (B, R), of e (B, R, d) and c (B, h)."""
        # The layer on [e, c], without repeating c for every row.
        of_rows, of_context = self.mix.weight[:, : self.row_dim], self.mix.weight[:, self.row_dim :]
        shared = functional.linear(c, of_context, self.mix.bias)
        u = (functional.linear(e, of_rows) + shared[:, None, :]).relu_()
        # Masking w u equals masking u and takes less memory; absent rows score exactly the bias.
        return (u @ self.out.weight[0]) * present + self.out.bias


class Attention(nn.Module):
    """Self-attention of one head over the present rows, added to them; permuting rows permutes its output.

    Args:
        row_dim: d, size of the features per row.
    """

    def __init__(self, row_dim: int) -> None:
        super().__init__()
        self.inputs = nn.Linear(row_dim, 3 * row_dim)  # queries, keys and values
        self.out = nn.Linear(row_dim, row_dim)

    def forward(self, e: Tensor, present: Tensor) -> Tensor:
        """Return rows, non-negative and 0 where absent, (B, R, d), of rows (B, R, d); ``present`` (B, R) is 0 or 1."""
        query, key, value = self.inputs(e)[:, None].chunk(3, 3)  # (B, one head, R, d)
        # Absent rows get weights of exactly 0 unless all are absent.
        absent = ((present - 1.0) * 1e9)[:, None, None, :]
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=absent)[:, 0]
        found: Tensor = (e + self.out(attended)).relu_() * present[:, :, None]
        return found


class MaximumOverRows(torch.autograd.Function):
    """``e.amax(1)``; every row that attains the maximum gets the whole gradient.

    Ties occur at 0 in practice, where the ReLU before has gradient 0. The gradient of ``amax`` itself, which shares it
    between ties, takes several times as long.
    """

    @staticmethod
    def forward(ctx: Any, e: Tensor) -> Tensor:
        """Return the maximum, (B, d), of rows (B, R, d)."""
        maximum = e.amax(1)
        ctx.save_for_backward(e, maximum)
        return maximum

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient of the rows from the gradient of the maximum."""
        e, maximum = ctx.saved_tensors
        hits = torch.eq(e, maximum[:, None, :], out=torch.empty_like(e))
        return hits.mul_(gradients[0][:, None, :])


def pool_rows(e: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and maximum (B, d) over present rows; e is non-negative, and 0 where absent."""
    count = present.sum(1, keepdim=True).clamp_(min=1.0)
    return e.sum(1) / count, MaximumOverRows.apply(e)  # type: ignore[no-untyped-call]
