"""A torch module whose parameters come from ampd and whose gradients go there.

Where a parameter of the module has the dtype of the cast and lies on the CPU, its data is a view of the memory that is
pulled into: a pull needs no copy. Else each pull copies into it (converting, or to its device).

A gradient is pushed by a hook behind its accumulation, while backward goes on: the tensor itself is handed in, and not
touched before the step has ended. One of a CUDA device goes by one asynchronous copy into pinned memory. One that is
not contiguous, or has another dtype than ampd.join's `gradients`, is copied first.
"""
from __future__ import annotations

import contextlib

import torch

from ampd import errors
from ampd._library import ffi, lib
from ampd.job import Memory, elements

_DTYPES = {lib.AMP_F32: torch.float32, lib.AMP_F16: torch.float16, lib.AMP_BF16: torch.bfloat16}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_POST_ACCUMULATE = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1


def trained(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by name; one that is shared has its first name."""
    found = {name: one for name, one in module.named_parameters() if one.requires_grad}
    if not found:
        raise errors.InvalidArgument("the module has no parameter that requires a gradient; nothing is to be trained")
    return found


def memory_for(module: torch.nn.Module, *, pin: bool, waits: bool):
    """The kind of memory that pulls of this module go into. `waits`: the model waits for each of its workers, so that
    nobody writes over what is in the server's copy while this one computes on it."""
    if not pin or not any(one.is_cuda for one in module.parameters()):
        return Memory
    from ampd import pinned
    return pinned.PinnedSharedMemory if waits else pinned.PinnedMemory


def shapes(module: torch.nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(one.shape)) for name, one in trained(module).items()]


def initial_values(module: torch.nn.Module) -> list:
    """Contiguous float32 arrays."""
    return [one.detach().to("cpu", torch.float32).contiguous().numpy() for one in trained(module).values()]


class Module:
    """What a Job knows of its torch module."""

    def __init__(self, job, module: torch.nn.Module, *, pins: bool = True):
        self.job, self.module = job, module
        job.how_to_push = "call step.backward(loss) before step.end(); loss.backward() alone pushes nothing"
        self._parameters = trained(module)
        self._views: dict[str, torch.Tensor] | None = None  # of the memory that is pulled into
        self._indices: dict[str, int] = {}
        self._autocast_dtype = None
        self._pins = pins                # memory that gradients of a device are copied into
        self._pushing = False            # inside of Step.backward
        self._held: list = []            # gradients that are being sent
        self._staged: list = []          # (index, pinned tensor, event) that are on their way from a device
        self._pinned: dict[int, torch.Tensor] = {}
        self._places: dict[int, tuple] = {}  # (address, tensor) in the server's slot
        self._copies: dict[int, dict[str, torch.Tensor]] = {}  # views of the server's copies, by where these begin
        self._copied: list = []          # events: parameters have come to a device
        self._kinds: dict[str, tuple] = {}  # (dtype, device), as hooked
        self._hooks: dict[str, tuple] = {}
        self._hook_all()

    # ---- parameters ----

    def _make_views(self) -> None:
        names = set(self.job.parameters)
        if names != set(self._parameters):
            only = sorted(names ^ set(self._parameters))
            raise errors.InvalidArgument("the model on the server and the module have different parameters: %s%s; "
                                         "give the model another name" % (", ".join(only[:4]),
                                                                          " ..." if len(only) > 4 else ""))
        views = {}
        for name, parameter in self._parameters.items():
            array = self.job.parameters[name]
            self._indices[name] = self.job._index_of(name)
            dtype = _DTYPES[self._code(name)]
            if tuple(parameter.shape) != array.shape:
                raise errors.InvalidArgument("parameter %s has shape %s in the module, and %s on the server"
                                             % (name, tuple(parameter.shape), array.shape))
            offset = array.ctypes.data - _address(self.job.memory.buffer)
            view = torch.frombuffer(self.job.memory.buffer, dtype=dtype, count=array.size,
                                    offset=offset).view(array.shape)
            self._autocast_dtype = dtype
            views[name] = view
        self._views = views

    def _views_in_place(self) -> dict[str, torch.Tensor]:
        """Views of where the library has the parameters: in a copy of the server's, which is to be read alone."""
        base = int(ffi.cast("uintptr_t", self.job.tensor(0).data))
        if base not in self._copies:
            if len(self._copies) > 2:  # two copies, and memory for what comes as bytes; older ones are unmapped
                self._copies.clear()
            self._copies[base] = {
                name: _at(self.job.tensor(self._indices[name]).data, one.dtype, one.shape)
                for name, one in self._views.items()}
        return self._copies[base]

    def _code(self, name: str) -> int:
        return self.job.tensor(self.job._index_of(name)).dtype

    def pulled(self, job) -> None:
        """The memory has another version."""
        if self._views is None:
            self._make_views()
        in_place = job.memory.in_place
        views = self._views_in_place() if in_place else self._views
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                view = views[name]
                if in_place or parameter.dtype != view.dtype or parameter.device.type != "cpu":
                    parameter.data.copy_(view, non_blocking=True)
                elif parameter.data_ptr() != view.data_ptr():  # the first time, or moved since then
                    parameter.data = view
        self._copied = [torch.cuda.current_stream(device).record_event()
                        for device in {one.device for one in self._parameters.values() if one.is_cuda}]

    def settle(self) -> None:
        """No device copies any more from or to memory that the library is about to give to others."""
        for event in self._copied + [event for _, _, event in self._staged]:
            event.synchronize()
        self._copied.clear()

    def state_dict(self, arrays: dict) -> dict:
        """The module's own state with these values for its parameters, under each of their names."""
        names = {id(one): name for name, one in self._parameters.items()}
        return {name: torch.from_numpy(arrays[names[id(value)]]) if id(value) in names else value.detach().cpu().clone()
                for name, value in self.module.state_dict(keep_vars=True).items()}

    # ---- gradients ----

    def _hook_all(self) -> None:
        """Hooks what has none: before torch 2.1 a parameter that goes to another dtype or device loses its hook."""
        for name, parameter in self._parameters.items():
            kind = (parameter.dtype, parameter.device)
            if name not in self._hooks or (not _POST_ACCUMULATE and self._kinds[name] != kind):
                self._kinds[name], self._hooks[name] = kind, self._hook(name, parameter)

    def _hook(self, name: str, parameter):
        def accumulated(*_):
            if self._pushing:
                self._push(name, parameter)

        if _POST_ACCUMULATE:
            return parameter.register_post_accumulate_grad_hook(accumulated)
        # The node that adds to .grad, as DistributedDataParallel finds it; it lives as long as it is held here.
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        return node, node.register_hook(accumulated)

    def autocast(self):
        """torch.autocast for the module's device and the cast's dtype; nothing where there is no such autocast."""
        device = next(iter(self._parameters.values())).device.type
        dtype = self._autocast_dtype
        if dtype == torch.float32 or (device == "cpu" and dtype == torch.float16):
            return contextlib.nullcontext()  # CPUs of this torch compute float16 in float32
        return torch.autocast(device, dtype=dtype)

    def backward(self, loss, scale: float) -> None:
        self._hook_all()
        self._pushing = True
        try:
            (loss * scale).backward()
        finally:
            self._pushing = False
        self._send_staged(wait=False)

    def push_all(self) -> None:
        """What .grad has of each parameter: for loops that call backward themselves."""
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self._push(name, parameter)

    def _push(self, name: str, parameter) -> None:
        gradient = parameter.grad
        if gradient.is_sparse:
            raise errors.InvalidArgument("the gradient of %s is sparse; make the module without sparse=True" % name)
        if gradient.dtype not in _CODES:
            raise errors.InvalidArgument("the gradient of %s is %s; use float16, bfloat16 or float32"
                                         % (name, gradient.dtype))
        dtype = gradient.dtype if self.job.gradients is None else _DTYPES[self.job.gradients]
        if gradient.dtype != dtype or not gradient.is_contiguous():
            self.job.copies += 1
            gradient = torch.empty(gradient.shape, dtype=dtype, device=gradient.device).copy_(gradient.detach())
        if self.job.accumulate > 1:
            parameter.grad = None  # the library adds up
        if gradient.is_cuda:
            self._stage(self._indices[name], gradient)
            return
        self.job.push_address(self._indices[name], gradient.data_ptr(), _CODES[gradient.dtype])
        if self.job.accumulate == 1:
            self._held.append(gradient)

    def _stage(self, index: int, gradient) -> None:
        place = self._place_in_slot(index, gradient)
        if place is None:
            place = self._pinned.get(index)
            if place is None or place.dtype != gradient.dtype:
                place = self._pinned[index] = torch.empty(gradient.shape, dtype=gradient.dtype, pin_memory=self._pins)
            elif self.job.accumulate > 1:
                self._send_staged(wait=True)  # what was staged there before is to be added first
        place.copy_(gradient, non_blocking=True)
        self._staged.append((index, place, torch.cuda.current_stream(gradient.device).record_event()))
        self._send_staged(wait=False)

    def _place_in_slot(self, index: int, gradient):
        """A view of the gradient's place in memory that is shared with the server, and pinned; None: there is none."""
        width = self.job.memory.slot_width if self.job.memory.in_place and self.job.accumulate == 1 else 0
        if width != gradient.element_size() or not self.job.shares_memory:
            return None
        pointer = self.job._gradient_place(index, _CODES[gradient.dtype])
        address, view = self._places.get(index, (None, None))
        if address != int(ffi.cast("uintptr_t", pointer)) or view.dtype != gradient.dtype:
            view = _at(pointer, gradient.dtype, gradient.shape)
            self._places[index] = (int(ffi.cast("uintptr_t", pointer)), view)
        return view

    def _send_staged(self, *, wait: bool) -> None:
        while self._staged and (wait or self._staged[0][2].query()):
            index, pinned, event = self._staged.pop(0)
            event.synchronize()
            self.job.push_address(index, pinned.data_ptr(), _CODES[pinned.dtype])

    def finish(self, job) -> None:
        """Before the step ends: what is still on its way from a device is pushed."""
        self._send_staged(wait=True)
        self.settle()

    def ended(self) -> None:
        """The step has ended: its gradients are nobody's any more."""
        self._held.clear()
        self._staged.clear()
        for parameter in self._parameters.values():
            parameter.grad = None


def _address(buffer) -> int:
    return int(ffi.cast("uintptr_t", ffi.from_buffer(buffer)))


def _at(pointer, dtype, shape) -> torch.Tensor:
    """A tensor of memory that is not torch's: valid as long as that is."""
    count = elements(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer(ffi.buffer(pointer, count * size), dtype=dtype, count=count).view(shape)
