"""CPU tensors that pretend to lie on a GPU: what would not run on one shows on every machine.

Inside ``pretended_cuda`` a storage is either here or there. What is asked for on ``cuda`` is there,
and so is what is computed of it; a tensor of either place says so (``device``, ``is_cuda``). An
operation that mixes the two raises, as on a real machine, and every time the host would wait for
the device is counted. Nothing is said of speed, nor of the kernels themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

THERE = torch.device("cuda:0")
_aten = torch.ops.aten
#: What the host cannot go on without: a value, or the size of a result.
_WAITS = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.equal.default,
    _aten.repeat_interleave.Tensor,
}
_INDEXED = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._unsafe_index.Tensor,
    _aten._index_put_impl_.default,
}
_DEVICE, _IS_CUDA = Tensor.device.__get__, Tensor.is_cuda.__get__  # type: ignore[attr-defined]
#: Operations without a fixed order on a GPU, for which torch raises where one is asked for.
DISORDERLY = {
    *("aten::cumsum", "aten::cumsum_", "aten::histc", "aten::kthvalue", "aten::median.dim"),
    *("aten::put_", "aten::bincount", "aten::scatter_reduce.two", "aten::nll_loss2d_forward"),
    *("aten::_embedding_bag", "aten::upsample_bilinear2d_backward", "aten::_adaptive_avg_pool2d"),
    *("aten::grid_sampler_2d_backward", "aten::reflection_pad2d_backward", "aten::max_unpool2d"),
}
#: What makes room or another view: no work for the device.
_FREE = {
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.empty.memory_format,
    _aten._unsafe_view.default,
}
_MAKES = {torch.tensor, torch.as_tensor, torch.Tensor.new_tensor}


class Machine:
    """Where storages are, how often host and device have met, and what the device had to do.

    ``operations`` are all there were; ``work`` those of them that the device has to do something
    for, neither views nor room for a result; ``launches`` are kernels of our own.
    """

    def __init__(self) -> None:
        # Held, so that no address stands for two.
        self._there: dict[int, torch.UntypedStorage] = {}
        self.waits: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self.crossing = False
        # Memory that stays where it is: what is copied from it, nobody has to wait for.
        self._pinned: dict[int, torch.UntypedStorage] = {}

    def is_there(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            try:
                return tensor.untyped_storage()._cdata in self._there
            except (RuntimeError, NotImplementedError):  # inside vmap
                return False

    def put(self, tensor: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
        self._there[storage._cdata] = storage
        return tensor

    def pinned(self, tensor: Tensor) -> Tensor:
        """As ``Tensor.pin_memory``."""
        copied = tensor.clone()
        with torch._C.DisableTorchFunction():
            storage = copied.untyped_storage()
        self._pinned[storage._cdata] = storage
        return copied

    def moved(
        self,
        tensor: Tensor,
        there: bool,
        dtype: torch.dtype | None = None,
        *,
        non_blocking: bool = False,
    ) -> Tensor:
        """As ``Tensor.to``: a copy where the place is another one."""
        if self.is_there(tensor) == there:
            return tensor.to(dtype or tensor.dtype)
        with torch._C.DisableTorchFunction():
            pinned = tensor.untyped_storage()._cdata in self._pinned
        if not (there and non_blocking and pinned):
            self.waits["to the device" if there else "to the host"] += 1
        self.crossing = True
        try:
            copied = tensor.to(dtype or tensor.dtype, copy=True)
        finally:
            self.crossing = False
        return self.put(copied) if there else copied


@contextmanager
def pretended_cuda() -> Iterator[Machine]:
    """Inside, ``cuda`` is a place like any other; yields what is counted."""
    machine = Machine()
    with _Places(machine), _Operations(machine):
        yield machine


@contextmanager
def interpreted_there(machine: Machine) -> Iterator[None]:
    """Inside, triton's interpreter runs kernels on what pretends to be on the GPU.

    Launches are counted by the kernels' names; nobody waits for one.
    """
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def uncounted(self: Any, *args: Any, **kwargs: Any) -> None:
        machine.launches[self.fn.__name__] += 1
        machine.crossing = True
        try:
            with torch._C.DisableTorchFunction():
                launch(self, *args, **kwargs)
        finally:
            machine.crossing = False

    GridExecutor.__call__ = uncounted
    try:
        yield
    finally:
        GridExecutor.__call__ = launch


class _Operations(TorchDispatchMode):
    """Below autograd: places of inputs and outputs."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        machine, kwargs = self.machine, kwargs or {}
        if machine.crossing:
            return func(*args, **kwargs)
        tensors = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
        there = [x for x in tensors if machine.is_there(x)]
        if there:
            machine.operations[func.name()] += 1
            if not func.is_view and func not in _FREE:
                machine.work[func.name()] += 1
            here = [x for x in tensors if x.dim() and not machine.is_there(x)]
            bits = [x for x in tensors[1:] if x.dtype in (torch.bool, torch.uint8)]
            if func in _WAITS or (func in _INDEXED and (here or bits)):
                machine.waits[str(func)] += 1
            elif func is _aten.copy_.default and len(there) < len(tensors):
                machine.waits["copy between host and device"] += 1
                return func(*args, **kwargs)
            elif here:
                shapes = [tuple(x.shape) for x in here]
                raise RuntimeError(f"{func} mixes devices: tensors {shapes} are on the CPU")
        result = func(*args, **kwargs)
        if there:
            own = {id(x) for x in tensors}
            for x in tree_iter(result):
                if isinstance(x, Tensor) and id(x) not in own:
                    machine.put(x)
        return result


class _Places(TorchFunctionMode):
    """Above autograd: what a tensor says of its place, and what moves it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self.machine = machine

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        machine, kwargs = self.machine, dict(kwargs or {})
        if func == _DEVICE:
            return THERE if machine.is_there(args[0]) else func(*args)
        if func == _IS_CUDA:
            return machine.is_there(args[0])
        if func is Tensor.pin_memory:
            return machine.pinned(args[0])
        if func in (Tensor.cuda, Tensor.cpu):
            return machine.moved(args[0], func is Tensor.cuda)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func is Tensor.tolist and machine.is_there(args[0]):
            machine.waits["tolist"] += 1
        if func in (Tensor.numpy, Tensor.__array__) and machine.is_there(args[0]):
            if not kwargs.pop("force", False):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return machine.moved(args[0].detach(), False).numpy()
        if func is Tensor.backward:
            # Its Python is entered anew, with the mode that a call of torch's own leaves out.
            with self:
                slope = kwargs.pop("gradient", None)
                return torch.autograd.backward(args[0], slope, **kwargs)
        asks = kwargs.get("device") is not None and func is not torch._C._nn._parse_to
        if not asks:
            # A new tensor is where the one is of which it was asked.
            if func is Tensor.new_tensor and machine.is_there(args[0]):
                machine.waits["new_tensor"] += 1
                return machine.put(func(*args, **kwargs))
            return func(*args, **kwargs)
        there = torch.device(kwargs.pop("device")).type == "cuda"
        like = [x for x in args if isinstance(x, Tensor)]
        if any(machine.is_there(x) for x in like) and not there:
            raise NotImplementedError(f"{func} from there to here")
        result = func(*args, **kwargs)
        if there and not machine.is_there(result):
            if func in _MAKES:
                machine.waits["a list copied to the device"] += 1
            machine.put(result)
        return result

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        there, dtype = self.machine.is_there(tensor), None
        for x in (*args, *kwargs.values()):
            if isinstance(x, str | torch.device):
                there = torch.device(x).type == "cuda"
            elif isinstance(x, torch.dtype):
                dtype = x
            elif isinstance(x, Tensor):
                there, dtype = self.machine.is_there(x), x.dtype
        late = kwargs.get("non_blocking", False)
        found = self.machine.moved(tensor, there, dtype, non_blocking=late)
        return found.clone() if kwargs.get("copy") and found is tensor else found
