"""Cross entropy of a language model whose logits never exist all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from parastrat.chunked_loss import USUAL_CHUNKS
from parastrat.errors import ModelError, UsageError
from parastrat.runtime.context_parallel.positions import divided_now, summed, used
from parastrat.runtime.tensors.batches import IGNORED


def chunked_cross_entropy(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *,
    chunks: int = USUAL_CHUNKS,
    ignore_index: int = IGNORED,
) -> torch.Tensor:
    """Return the mean of ``functional.cross_entropy(head(hidden).float(), targets)``, chunk by chunk.

    Each chunk of tokens goes through the head and the loss under a checkpoint: its logits are let go of,
    and made again in backward. That costs one more forward of the head, and sums of its gradients. To be
    called inside of the model's forward, where FSDP2 has gathered the head. Under context parallelism each
    rank does so for a part of the tokens.

    Args:
        head: the layer that makes logits, such as ``lm_head``; (tokens, hidden) to (tokens, vocabulary).
        hidden: what the last norm gave, (..., hidden).
        targets: class indices, of the shape of ``hidden`` without its last dimension.
        chunks: how many parts of the tokens, as equal as can be.
        ignore_index: targets that are left out.

    Raises:
        UsageError: targets of another shape, or fewer than one chunk.
    """
    if hidden.shape[:-1] != targets.shape:
        raise UsageError(
            f"targets are of shape {tuple(targets.shape)}, hidden states of {tuple(hidden.shape)}",
            hint="give one target for each token: shift both, and leave the last token out",
        )
    if chunks < 1:
        raise UsageError(f"{chunks} chunks", hint="use 1 or more")

    def summed_over(some: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        logits = head(some).float()
        return functional.cross_entropy(logits, own, ignore_index=ignore_index, reduction="sum")

    tokens, aims = hidden.flatten(0, -2), targets.flatten()
    positions = divided_now()
    if positions is not None:  # all ranks of a sequence have all of it here
        tokens = used(tokens, positions).tensor_split(positions.ranks)[positions.rank]
        aims = aims.tensor_split(positions.ranks)[positions.rank]
    # as many on every rank, also where there are fewer tokens: a head that is gathered is so for each
    pieces = zip(tokens.tensor_split(chunks), aims.tensor_split(chunks), strict=True)
    losses = [checkpoint(summed_over, some, own, use_reentrant=False) for some, own in pieces]
    total = torch.stack(losses).sum()
    if positions is not None:
        total = summed(total, positions)
    return total / (targets != ignore_index).sum()


class LossInChunks(nn.Module):
    """A Hugging Face language model that gives the mean loss of its own inputs, in chunks.

    Args:
        model: it has a ``base_model`` and output embeddings.
        chunks: of the tokens.

    Raises:
        ModelError: it has none.
    """

    def __init__(self, model: nn.Module, chunks: int) -> None:
        super().__init__()
        embeddings = getattr(model, "get_output_embeddings", None)
        if embeddings is None or embeddings() is None:
            raise ModelError(
                f"{type(model).__name__} has no output embeddings to be called in chunks",
                hint="set loss_chunks = 1 in [workload], and call chunked_cross_entropy in its forward",
            )
        self.model, self._chunks = model, chunks
        self.main_input_name, self.config = "input_ids", model.config

    def with_config(self, config: Any) -> LossInChunks:
        """Return it around a model of another config: proofs make a small one."""
        return LossInChunks(type(self.model)(config), self._chunks)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the mean loss; what it predicts takes no memory of its own, so it is the input itself."""
        model: nn.Module = self.model
        hidden = model.base_model(input_ids)[0]  # type: ignore[operator]
        return chunked_cross_entropy(self._logits, hidden, input_ids, chunks=self._chunks)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.model.get_output_embeddings()(hidden)  # type: ignore[operator]
        cap = getattr(self.config, "final_logit_softcapping", None)
        return made if cap is None else torch.tanh(made / cap) * cap
