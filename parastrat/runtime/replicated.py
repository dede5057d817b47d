"""DDP that a script cannot take for the module inside of it without being told."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import WrapError


class Replicated(DistributedDataParallel):
    """torch's, which refuses to be given what is an attribute of the module: that would not read it.

    A script that anneals ``model.temperature`` would go on with the first one, without a word.
    """

    _is_made = False

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the wrapper.

        Raises:
            WrapError: where the module has it, and the wrapper does not.
        """
        if self._is_made and hasattr(self.module, name) and not hasattr(self, name):
            raise WrapError(
                f"{name} is an attribute of the {type(self.module).__name__} inside of DDP, which would "
                "not see it set here",
                hint=f"set it there: getattr(model, 'module', model).{name} = ...",
            )
        super().__setattr__(name, value)
