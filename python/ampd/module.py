"""A torch module whose parameters come from ampd and whose gradients go there.

Where a parameter of the module has the dtype of the cast and lies on the CPU, its data is a view of the memory that is
pulled into: a pull needs no copy. Else each pull copies into it (converting, or to its device).

A gradient is pushed by a hook behind its accumulation, while backward goes on: the tensor itself is handed in, and not
touched before the step has ended. One of a CUDA device goes by one asynchronous copy into pinned memory. One that is
not contiguous, or has another dtype than ampd.join's `gradients`, is copied first.
"""
from __future__ import annotations

import contextlib
import copy
import threading
import weakref

import torch

from ampd import errors
from ampd._library import address_of, ffi, lib
from ampd.job import elements

_DTYPES = {lib.AMP_F32: torch.float32, lib.AMP_F16: torch.float16, lib.AMP_BF16: torch.bfloat16}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_pulled_last: dict[int, weakref.ref] = {}  # by a parameter's id: the Module that has pulled into it last
_POST_ACCUMULATE = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # torch 2.1


def on_device(tensor: torch.Tensor) -> bool:
    """Whether it is to be copied to and from here: tests let the processor stand in for a device."""
    return tensor.is_cuda


def is_trained(parameter) -> bool:
    """One without elements has nothing to be trained, and stays the module's own."""
    return parameter.requires_grad and (torch.nn.parameter.is_lazy(parameter) or parameter.numel() > 0)


def _refuse_shards(module: torch.nn.Module) -> None:
    """Of parameters that are a part of them on each rank, where each would give its own as the whole."""
    for what, kind, named in (("module", "FullyShardedDataParallel", module.named_modules()),
                              ("parameter", "DTensor", module.named_parameters())):
        for name, one in named:
            if kind in [base.__name__ for base in type(one).__mro__]:
                raise errors.InvalidArgument("%s %s is a %s, of which each rank has a part; give ampd.join the module "
                                             "itself, not wrapped or sharded by torch: each worker has all of it"
                                             % (what, name or "that was given", kind))


def trained(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, by name; one that is shared has its first name."""
    _refuse_shards(module)
    found = {name: one for name, one in module.named_parameters() if is_trained(one)}
    if not found:
        raise errors.InvalidArgument("the module has no parameter that requires a gradient, so nothing is to be "
                                     "trained; call requires_grad_() of what is, before ampd.join")
    for name, one in found.items():
        if torch.nn.parameter.is_lazy(one):
            raise errors.InvalidArgument("parameter %s of a lazy module has no shape yet; call the module once with an "
                                         "input" % name)
        if one.is_complex():
            raise errors.InvalidArgument("parameter %s is complex, and ampd trains real numbers; keep its real and "
                                         "imaginary part as two parameters" % name)
        if one.is_meta:
            raise errors.InvalidArgument("parameter %s is on the meta device and has no values; make the module on "
                                         "another, or call its to_empty() and give them" % name)
    return found


def refuse_sparse(name: str, gradient: torch.Tensor | None) -> None:
    if gradient is not None and gradient.is_sparse:
        raise errors.InvalidArgument("the gradient of %s is sparse; make the module without sparse=True" % name)


def memory_for(module: torch.nn.Module, *, pin_memory: bool):
    """Memory that pulls of this module go into; None: any."""
    device = next((one.device for one in module.parameters() if on_device(one)), None)
    if not pin_memory or device is None:
        return None
    from ampd import pinned
    return pinned.PinnedMemory(device)


def shapes(module: torch.nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(one.shape)) for name, one in trained(module).items()]


def initial_values(module: torch.nn.Module) -> list:
    """Contiguous float32 arrays."""
    return [one.detach().to("cpu", torch.float32).contiguous().numpy() for one in trained(module).values()]


class Module:
    """What a Job knows of its torch module."""

    def __init__(self, job, module: torch.nn.Module, *, pin_memory: bool = True):
        self.job, self.module = job, module
        job.how_to_push = "call step.backward(loss) before step.end(); loss.backward() alone pushes nothing"
        self._parameters = trained(module)
        self._puller = dict.fromkeys(map(id, self._parameters.values()), weakref.ref(self))
        weakref.finalize(self, _forget, self._puller)
        self._pullers = [_pulled_last.get(id(one)) for one in self._parameters.values()]  # before this one
        self._views: dict[str, torch.Tensor] | None = None  # of the memory that is pulled into
        self._indices: dict[str, int] = {}
        self._autocast_dtype = None
        self._pin_memory = pin_memory    # that gradients of a device are copied into
        self._version: tuple | None = None  # of what was pulled
        self._writes = self._count_writes()  # to each parameter, at join or when it was pulled last
        self._pushing = False            # inside of Step.backward
        self._sent: dict[str, tuple] = {}  # (gradient, torch's count of writes to it) of those pushed in this step
        self._held: list = []            # gradients that are being sent
        self._staging = threading.RLock()
        self._staged: list = []          # (index, pinned tensor, event) that are on their way from a device
        self._pinned: dict[int, torch.Tensor] = {}
        self._places: dict[int, torch.Tensor] = {}  # views of the slot
        self._copies: dict[int, dict[str, torch.Tensor]] = {}  # views of parameters, by where the first begins
        self._copied: list = []          # events: parameters have come to a device
        self._hooks: dict[str, tuple] = {}  # (what is hooked, its handle)
        self._hook_all()
        self._tell_overlapping()

    # ---- parameters ----

    def _tell_overlapping(self) -> None:
        """Of parameters that are views of the same memory, as a decoder's of an encoder's: each is pulled by itself."""
        places = sorted((str(one.device), one.data_ptr(), _end_of(one), name)
                        for name, one in self._parameters.items() if one.device.type in ("cpu", "cuda"))
        for (device, _, end, name), (other_device, begin, _, other) in zip(places, places[1:]):
            if device == other_device and begin < end:
                self.job._warn_once("overlapping", "%s: parameters %s and %s share memory, and the model trains each "
                                    "for itself; use one parameter in both places (and its .t() in forward)",
                                    self.job.name, *sorted((name, other)))

    def _make_views(self) -> None:
        names = set(self.job.parameters)
        if names != set(self._parameters):
            only = sorted(names ^ set(self._parameters))
            raise errors.InvalidArgument("the model on the server and the module have different parameters: %s%s; "
                                         "give the model another name" % (", ".join(only[:4]),
                                                                          " ..." if len(only) > 4 else ""))
        views = {}
        for name, parameter in self._parameters.items():
            views[name] = self._view(name)
            self._indices[name] = self.job._index_of(name)
            if parameter.shape != views[name].shape:
                raise errors.InvalidArgument("parameter %s has shape %s in the module, and %s on the server"
                                             % (name, tuple(parameter.shape), tuple(views[name].shape)))
            self._autocast_dtype = views[name].dtype
        self._views = views

    def _view(self, name: str) -> torch.Tensor:
        """Of a parameter in the memory that is pulled into, with a storage of its own: torch moves a whole storage
        (share_memory, queues between processes), and with it all tensors that have it."""
        array, buffer = self.job.parameters.place_of(name), self.job.memory.buffer
        return torch.frombuffer(buffer, dtype=_DTYPES[self._code(name)], count=array.size,
                                offset=array.ctypes.data - _address(buffer)).view(array.shape)

    def _views_where_pulled(self) -> dict[str, torch.Tensor]:
        """Views of where the library has the parameters: maybe in a copy of the server's, which is to be read alone."""
        base = address_of(self.job.tensor(0).data)
        if base not in self._copies:
            if len(self._copies) > 2:  # two copies, and memory for what comes as bytes; older ones are unmapped
                self._copies.clear()
            self._copies[base] = {
                name: _at(address_of(self.job.tensor(self._indices[name]).data), one.dtype, one.shape)
                for name, one in self._views.items()}
        return self._copies[base]

    def _code(self, name: str) -> int:
        return self.job.tensor(self.job._index_of(name)).dtype

    def _count_writes(self) -> list[int]:
        return [one._version for one in self._parameters.values()]  # what is written by .data is not counted

    def pulled(self, version: tuple) -> None:
        """The memory has these values: (epoch, version)."""
        # What torch.inference_mode makes cannot be trained with.
        with torch.inference_mode(False), torch.no_grad():
            self._take_pulled(version != self._version)
        self._version = version
        _pulled_last.update(self._puller)
        self._writes = self._count_writes()

    def _take_pulled(self, is_new: bool) -> None:
        """New values count as a write, as those of torch's optimizers do: a backward through older ones is refused."""
        if self._views is None:
            self._make_views()
        if is_new:
            torch.clear_autocast_cache()  # of a loop that is inside of autocast as a whole
        stays_shared = self.job.memory.stays_shared
        views = self._views_where_pulled() if stays_shared else self._views
        if self._version is None:
            self._tell_replaced(views)
        try:
            for name, parameter in self._parameters.items():
                view = views[name]
                if stays_shared or parameter.dtype != view.dtype or parameter.device.type != "cpu":
                    (parameter if is_new else parameter.data).copy_(view, non_blocking=True)
                    continue
                if parameter.data_ptr() != view.data_ptr():  # the first time, or moved since then
                    parameter.data = self._view(name)
                if is_new:
                    parameter.as_strided((0,), (1,)).zero_()  # writes nothing, and counts
        finally:
            self._copied = [torch.cuda.current_stream(device).record_event()
                            for device in {one.device for one in self._parameters.values() if on_device(one)}]

    def synchronize(self) -> None:
        """Waits until no device copies from or to memory that the library may write over or unmap next."""
        for event in self._copied + [event for _, _, event in self._staged]:
            event.synchronize()
        self._copied.clear()

    def state_dict(self, arrays: dict) -> dict:
        """The module's own state with these values for its parameters, under each of their names."""
        names = {id(one): name for name, one in self._parameters.items()}

        def own(value):
            if not isinstance(value, torch.Tensor):  # a module's extra state
                return copy.deepcopy(value)
            return torch.from_numpy(arrays[names[id(value)]]) if id(value) in names else value.detach().cpu().clone()

        return {name: own(value) for name, value in self.module.state_dict(keep_vars=True).items()}

    # ---- gradients ----

    def _hook_all(self) -> None:
        """Hooks what has none: before torch 2.1 a parameter that goes to another dtype or device loses its hook, also
        where it comes back. One that is frozen has nothing to hook."""
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and (
                    name not in self._hooks
                    or (not _POST_ACCUMULATE and self._hooks[name][0] is not _adds_to(parameter))):
                self._hooks[name] = self._hook(name, parameter)

    def _hook(self, name: str, parameter) -> tuple:
        this = weakref.ref(self)  # the hook may live as long as the parameter

        def accumulated(*_):
            module = this()
            if module is not None and module._pushing:
                module._push(name)

        if _POST_ACCUMULATE:
            return parameter, parameter.register_post_accumulate_grad_hook(accumulated)
        node = _adds_to(parameter)
        return node, node.register_hook(accumulated)

    def left(self) -> None:
        """The job has left: nothing is pushed any more."""
        for _, handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()

    def autocast(self):
        """torch.autocast for the module's device and the cast's dtype; nothing where there is no such autocast."""
        device = next(iter(self._parameters.values())).device.type
        dtype = self._autocast_dtype
        if dtype == torch.float32 or (device == "cpu" and dtype == torch.float16):
            return contextlib.nullcontext()  # CPUs of this torch compute float16 in float32
        return torch.autocast(device, dtype=dtype)

    def _tell_untrained(self) -> None:
        """Of a parameter that was unfrozen, replaced, or came to the module, after join: the model does not have it."""
        known = {id(one) for one in self._parameters.values()}
        found = [name for name, one in self.module.named_parameters() if is_trained(one) and id(one) not in known]
        if found:
            more = ", nor are %d more" % (len(found) - 1) if len(found) > 1 else ""
            self.job._warn_once("untrained", "%s: parameter %s is not trained%s: it was frozen at ampd.join, or has "
                                "come or been replaced since; to train it, join again with another name",
                                self.job.name, found[0], more)

    def _tell_replaced(self, views: dict[str, torch.Tensor]) -> None:
        """Of values that the program has written between join and the first pull, which is about to replace them."""
        for at, (name, one) in enumerate(self._parameters.items()):
            puller = _pulled_last.get(id(one))
            by_another_model = puller is not None and puller is not self._pullers[at]  # since ampd.join
            if one._version == self._writes[at] or by_another_model:
                continue
            written, view = one.detach().cpu(), views[name]
            if not (torch.equal(written.to(view.dtype), view) or torch.equal(written, view.to(one.dtype))):
                self.job._warn_once("replaced", "%s: the program has written to parameter %s between ampd.join and the "
                                    "first pull, which brings the server's values in their place; load values before "
                                    "ampd.join, for a model that has none yet: this one has, so give another name (if "
                                    "the server's are wanted, all is well)", self.job.name, name)
                return

    def _tell_written(self) -> None:
        """Of values that the program itself has given to a parameter: the server has others."""
        for at, (name, one) in enumerate(self._parameters.items()):
            by_another_model = _pulled_last.get(id(one)) is not self._puller[id(one)]  # of which _tell_shared tells
            if one._version == self._writes[at] or by_another_model:
                continue
            if not self._is_as_pulled(name, one):
                self.job._warn_once("written", "%s: the program has written to parameter %s (load_state_dict, clamp_, "
                                    "max_norm); the server does not get that, and the next pull undoes it; load values "
                                    "before ampd.join (if they were written back, all is well)", self.job.name, name)
                return
            self._writes[at] = one._version

    def _is_as_pulled(self, name: str, parameter) -> bool:
        """It has a copy of what was pulled (not that memory itself), and that has been written back."""
        view = self._views[name]
        if parameter.device.type != "cpu" or self.job.memory.stays_shared or parameter.data_ptr() == view.data_ptr():
            return False
        return torch.equal(parameter.detach(), view.to(parameter.dtype))

    def _tell_shared(self) -> None:
        """Of a parameter that is in two models: it has the values of the one that has pulled last."""
        for name, one in self._parameters.items():
            found = _pulled_last.get(id(one))
            other = found() if found is not None else None
            if other is not self and other is not None and other.job.name != self.job.name:
                self.job._warn_once("shared", "%s: parameter %s is in the model %s, too, which has pulled since this "
                                    "step began: the gradient is that of other values, and each model trains a copy of "
                                    "its own; give ampd.join the parameter in one of them alone", self.job.name, name,
                                    other.job.name)
                return

    def _tell_added(self) -> None:
        """Of a gradient that another backward has left, as a GAN's generator does in the discriminator: torch adds to
        it, and the sum is pushed."""
        found = next((name for name, one in self._parameters.items() if one.grad is not None and one.requires_grad
                      and name not in self._sent), None)
        if found is not None:
            self.job._warn_once("added", "%s: parameter %s had a gradient before step.backward, which torch adds to: "
                                "the sum is pushed; if another loss has left it there, call "
                                "zero_grad(set_to_none=True) of the module before", self.job.name, found)

    def _has_another(self, name: str, gradient) -> bool:
        found = self._parameters[name].grad
        return found is not None and found is not gradient

    def _tell_changed(self) -> None:
        """Of a clipping, or of another loss's backward, that came when the gradients were on their way already."""
        found = next((name for name, (gradient, writes) in self._sent.items()
                      if gradient._version != writes or self._has_another(name, gradient)), None)
        if found is not None:
            self.job._warn_once("changed", "%s: the gradient of parameter %s was written to between step.backward, "
                                "which sends it, and step.end(): the server may have got it as it was before, or in "
                                "part; clip by ampd.join clip_norm=, or use ampd.Optimizer, whose step sends (if it "
                                "has the same values, all is well)", self.job.name, found)

    def backward(self, loss, scale: float, retain_graph: bool) -> None:
        self._tell_untrained()
        self._tell_added()
        self._tell_written()
        self._tell_shared()
        self._hook_all()
        self._pushing = True
        try:
            (loss * scale).backward(retain_graph=retain_graph)
        finally:
            self._pushing = False
        self._send_staged(wait=False)

    def push_all(self) -> None:
        """What .grad has of each parameter: for loops that call backward themselves. It is taken out of .grad, so that
        a loop that goes on after Ctrl-C does not zero or add to what is being sent."""
        self._tell_untrained()
        self._tell_written()
        self._tell_shared()
        for name in self._parameters:
            self._push(name)
        self._sent.clear()
        self._clear_gradients()

    def _push(self, name: str) -> None:
        parameter = self._parameters[name]
        if parameter.grad is None:  # torch 1.13 calls hooks where a Function gives none
            return
        gradient = parameter.grad.detach()  # create_graph=True: the copy below is no part of a graph
        refuse_sparse(name, gradient)
        dtype = gradient.dtype if self.job.gradients is None else _DTYPES[self.job.gradients]
        if dtype not in _CODES:
            raise errors.InvalidArgument("the gradient of %s is %s; use float16, bfloat16 or float32, or give "
                                         "ampd.join gradients=, which converts" % (name, dtype))
        # Of devices that have no pinned copies here, the gradient is waited for.
        device = gradient.device if on_device(gradient) else torch.device("cpu")
        if (gradient.dtype != dtype or gradient.device != device or not gradient.is_contiguous()
                or gradient.is_neg()):  # a view of numbers of the other sign
            self.job.copies += 1
            gradient = torch.empty(gradient.shape, dtype=dtype, device=device).copy_(gradient)
        if self.job.accumulate > 1:
            parameter.grad = None  # the library adds up
        else:
            self._sent[name] = (parameter.grad, parameter.grad._version)
        if on_device(gradient):
            self._stage(self._indices[name], gradient)
            return
        if self.job.accumulate == 1:
            self._held.append(gradient)
        self._push_at(self._indices[name], gradient)

    def _push_at(self, index: int, gradient) -> None:
        self.job.push_at(index, ffi.cast("const void *", gradient.data_ptr()), _CODES[gradient.dtype])

    def _stage(self, index: int, gradient) -> None:
        with self._staging:  # modules on several devices have their hooks in a thread for each
            self._stage_alone(index, gradient)

    def _stage_alone(self, index: int, gradient) -> None:
        place = self._place_in_slot(index, gradient)
        if place is not None:
            self._pinned.pop(index, None)
        else:
            place = self._pinned.get(index)
            if place is None or place.dtype != gradient.dtype:
                place = self._pinned[index] = torch.empty(gradient.shape, dtype=gradient.dtype, device="cpu",
                                                          pin_memory=self._pin_memory)
            elif self.job.accumulate > 1:
                self._send_staged(wait=True)  # what was staged there before is to be added first
        place.copy_(gradient, non_blocking=True)
        self._staged.append((index, place, torch.cuda.current_stream(gradient.device).record_event()))
        self._send_staged(wait=False)

    def _place_in_slot(self, index: int, gradient):
        """A view of the gradient's place in the slot, which is pinned; None: there is none."""
        width = self.job.memory.slot_width if self.job.accumulate == 1 else 0
        if width != gradient.element_size() or not self.job.shares_memory:
            return None
        address, view = self.job._gradient_place(index, _CODES[gradient.dtype]), self._places.get(index)
        if view is None or view.data_ptr() != address or view.dtype != gradient.dtype:
            view = self._places[index] = _at(address, gradient.dtype, gradient.shape)
        return view

    def _send_staged(self, *, wait: bool) -> None:
        with self._staging:
            while self._staged and (wait or self._staged[0][2].query()):
                index, pinned, event = self._staged[0]
                event.synchronize()  # Ctrl-C most likely comes here: what is staged stays for the next call
                try:
                    self._staged.pop(0)
                    self._push_at(index, pinned)
                except BaseException:
                    if self.job._step is not None:
                        self.job._step.broken = True  # it would end without this gradient
                    raise

    def finish(self) -> None:
        """Before the step ends: what is still on its way from a device is pushed."""
        self._tell_changed()
        self._send_staged(wait=True)
        self.synchronize()

    def ended(self) -> None:
        """The step has ended: its gradients are nobody's any more."""
        self._held.clear()
        self._sent.clear()
        self._staged.clear()
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None


def _forget(puller: dict) -> None:
    """A Module is gone, and what it has pulled into with it, or pulled into by others since."""
    for key, module in puller.items():
        if _pulled_last.get(key) is module:
            del _pulled_last[key]


def _end_of(parameter) -> int:
    """The address behind its last element."""
    last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride()))
    return parameter.data_ptr() + (last + 1) * parameter.element_size()


def _adds_to(parameter):
    """The node that adds to .grad, as DistributedDataParallel finds it; it lives as long as it is held."""
    with torch.enable_grad():
        return parameter.expand_as(parameter).grad_fn.next_functions[0][0]


def _address(buffer) -> int:
    return address_of(ffi.from_buffer(buffer))


def _at(address: int, dtype, shape) -> torch.Tensor:
    """A tensor of memory that is not torch's: valid as long as that is."""
    count = elements(shape)
    size = torch.empty(0, dtype=dtype).element_size()
    memory = ffi.buffer(ffi.cast("void *", address), count * size)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
