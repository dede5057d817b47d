"""Train a small GPT on the source of Python's own standard library, byte by byte.

    python examples/train_gpt_single.py --steps 60

This is the form for one device: plain PyTorch, nothing to install but torch. ``train_gpt.py`` beside it is
the same file with one line changed, and the import that this line needs.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 256  # a token is a byte
WIDTH, HEADS, LAYERS = 128, 4, 6


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Turn pairs of channels by an angle that grows with the position (rotary, arXiv 2104.09864)."""
    length, channels = x.shape[-2:]
    rates = 10_000 ** (-torch.arange(0, channels, 2, device=x.device, dtype=torch.float32) / channels)
    angles = torch.arange(length, device=x.device, dtype=torch.float32).outer(rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and around a residual."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, _ = x.shape
        heads = self.qkv(self.attention_norm(x)).view(samples, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(samples, length, WIDTH)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.feed_norm(x)))))


class GPT(nn.Module):
    """A decoder whose output layer is its embedding; any sequence length."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.5 / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5 / math.sqrt(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build() -> GPT:
    """Return the untrained model: 1.2 million parameters."""
    return GPT()


def sample_inputs(micro_batch_size: int, sequence_length: int | None) -> torch.Tensor:
    """Return tokens as ``forward`` takes them, so that a planner can trace the model."""
    return torch.zeros(micro_batch_size, sequence_length or 128, dtype=torch.int64)


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Stretches of text with the byte that follows each of their bytes."""

    def __init__(self, text: bytes, sequence_length: int) -> None:
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.sequence_length = sequence_length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence_length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.sequence_length
        window = self.tokens[start : start + self.sequence_length + 1].long()
        return window[:-1], window[1:]


def standard_library() -> tuple[bytes, bytes]:
    """Return the source of the standard library's modules: to train on, and every tenth file to test on."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    if not files:
        raise SystemExit("this Python has no source of its standard library, which is the text to train on")
    held_out = files[9::10]
    train = b"".join(file.read_bytes() for file in files if file not in held_out)
    return train, b"".join(file.read_bytes() for file in held_out)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def over_ranks(value: torch.Tensor) -> float:
    """Return the mean over all processes; the value itself where there is one."""
    value = value.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value.item()


def held_out_loss(model: nn.Module, text: bytes, sequence_length: int, device: torch.device) -> float:
    """Return the loss on 64 windows spread over text that was not trained on."""
    windows = Windows(text, sequence_length)
    chosen = [windows[index * len(windows) // 64] for index in range(64)]
    inputs, targets = (torch.stack(side).to(device) for side in zip(*chosen, strict=True))
    model.eval()
    with torch.no_grad():
        loss = loss_of(model(inputs), targets)
    model.train()
    return loss.item()


def fingerprints(model: nn.Module) -> list[str]:
    """Return a hash of the whole weights as each process has them."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    own = digest.hexdigest()[:16]
    if not dist.is_initialized():
        return [own]
    every = [""] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step; a plan has its own")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    train_text, test_text = standard_library()
    windows = Windows(train_text, args.seq_len)
    order = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(windows, batch_size=args.batch, shuffle=True, generator=order, drop_last=True)

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=True)
    device = next(model.parameters()).device
    first = not dist.is_initialized() or dist.get_rank() == 0

    step = 0
    while step < args.steps:
        for inputs, targets in loader:
            loss = loss_of(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            mean = over_ranks(loss) if step % 5 == 0 or step in (1, args.steps) else None
            if first and mean is not None:
                print(f"step {step} loss {mean:.4f}", flush=True)
            if step == args.steps:
                break

    tested = held_out_loss(model, test_text, args.seq_len, device)
    hashes = fingerprints(model)
    if len(set(hashes)) > 1:
        raise SystemExit(f"the weights differ between the ranks: {' '.join(hashes)}")
    if first:
        print(f"held-out files: loss {tested:.4f} ({tested / math.log(2):.2f} bits a byte)")
        ranks = f"{len(hashes)} ranks" if len(hashes) > 1 else "1 rank"
        print(f"weights equal on {ranks}: {hashes[0]}")


if __name__ == "__main__":
    main()
