"""A script as users write them: it trains and ends, with the model still held by the module."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from runtime.models import Gpt, plan, token_loss, tokens  # noqa: E402  (found through the path set above)

import parastrat  # noqa: E402

torch.set_num_threads(1)
model = parastrat.auto_parallelize(Gpt(), plan=plan(**{sys.argv[1]: 2}))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    x, y = tokens(step, 2)
    token_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[2:] == ["raise"]:
    raise SystemExit(3)
