"""DDP that a script cannot take for the module inside of it without being told."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import WrapError
from parastrat.runtime.wrapped import is_wrapped
from parastrat.runtime.wrapping import wrapping_of

#: what timm's optimizers and rates by depth ask a model for, and do without where it has none
_ASKED = frozenset({"no_weight_decay", "group_matcher"})
#: of torch's message
_UNFINISHED = "Expected to have finished reduction in the prior iteration"


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

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapper.

        Raises:
            AttributeError: that says where it is, if the module has it.
            WrapError: where the module has it, and whoever asks goes on otherwise without it.
        """
        try:
            return super().__getattr__(name)
        except AttributeError:
            inside = self._modules.get("module")
            if not hasattr(inside, name):
                raise
            if name in _ASKED:
                raise WrapError(
                    f"something asks the model for {name}, which DDP hides, as it changes the names of "
                    "parameters: decay and rates would be others than on one device",
                    hint="give it the module, getattr(model, 'module', model), as in "
                    "timm.optim.create_optimizer_v2(getattr(model, 'module', model), ...)",
                ) from None
            raise AttributeError(
                f"{name} is an attribute of the {type(inside).__name__} inside of DDP: "
                f"getattr(model, 'module', model).{name} is the same under plans without DDP"
            ) from None

    def _pre_forward(self, *inputs: Any, **keywords: Any) -> Any:
        try:
            before: Any = super()._pre_forward  # torch leaves it untyped
            return before(*inputs, **keywords)
        except RuntimeError as error:
            if _UNFINISHED not in str(error):
                raise
            reached = wrapping_of(self).reached if is_wrapped(self) else None
            if reached is not None:
                reached.check_held()
            raise WrapError(
                "the last backward did not reach all parameters, as the first one did: DDP waits for their "
                "gradients",
                hint="let the forward of a module branch itself on what leaves parts out, where "
                "auto_parallelize sees it, or plan another strategy: parastrat recommend --strategy fsdp2",
            ) from error
