"""A worker of a model: its parameters, its steps, and what became of them. Arrays are numpy's; ampd/module.py has what
a torch module adds."""
from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import typing
from collections.abc import Iterator, Mapping

import numpy

from ampd import errors, spec
from ampd._client import Client, log, put, shown, struct, utf8
from ampd._library import address_of, ffi, lib, text

if typing.TYPE_CHECKING:
    from ampd.server import ModelStatus, Server

_NUMPY = {lib.AMP_F32: numpy.dtype(numpy.float32), lib.AMP_F16: numpy.dtype(numpy.float16),
          lib.AMP_BF16: numpy.dtype(numpy.uint16)}  # numpy has no bfloat16: its bits
_DTYPES = {numpy.dtype(numpy.float32): lib.AMP_F32, numpy.dtype(numpy.float16): lib.AMP_F16}
_DTYPE_NAMES = {lib.AMP_F32: "float32", lib.AMP_F16: "float16", lib.AMP_BF16: "bfloat16"}
ALIGN = 64  # of memory for parameters, as the library wants it

_VERDICTS = {lib.AMPCLIENT_APPLIED: "applied", lib.AMPCLIENT_SKIPPED_OVERFLOW: "skipped_overflow",
             lib.AMPCLIENT_SKIPPED_EMPTY: "skipped_empty", lib.AMPCLIENT_LATE: "late",
             lib.AMPCLIENT_ROLLED_BACK: "rolled_back"}
_OWN_WORDS = {"late": "The step was decided without this worker: it came too late.",
              "rolled_back": "The model was rolled back to an earlier step: this one does not count and is repeated."}


@dataclasses.dataclass(frozen=True)
class Overflow:
    """An Inf or a NaN in a step: in which parameter, and whose. Rank None: each worker's was finite, their sum not."""

    parameter: str
    rank: int | None
    worker: str
    inf_count: int
    nan_count: int
    first_index: int
    largest_finite: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a step. The same on every worker."""

    step: int
    epoch: int
    verdict: str  # "applied", "skipped_overflow", "skipped_empty"; of this worker alone: "late", "rolled_back"
    applied_steps: int
    version: int
    norm: float
    clip: float
    scale: float
    new_scale: float
    overflows: tuple[Overflow, ...]
    overflow_count: int
    durable_step: int
    _job = None  # whose it is: no field, for it is in no copy

    @property
    def applied(self) -> bool:
        return self.verdict == "applied"

    @property
    def skipped(self) -> bool:
        return self.verdict.startswith("skipped")

    def explain(self) -> str:
        """In words: whose gradient, which parameter, what the scale does, what to do. Asks the server."""
        if self.verdict in _OWN_WORDS:
            return _OWN_WORDS[self.verdict]
        if self._job is None:
            raise errors.WrongState("this result is a copy without its job; ask ampd.connect(endpoint).explain(model, "
                                    "%d)" % self.step)
        return self._job.server.explain(self._job.name, self.step, epoch=self.epoch).text

    def __getstate__(self) -> dict:
        return dataclasses.asdict(self) | {"overflows": self.overflows}


class Step:
    """A step in hand: number from 1, the loss scale, and the way to push. From Job.steps or Job.begin."""

    def __init__(self, job: "Job", begun, user_state: bytes | None):
        self.job = job
        self.number: int = begun.step
        self.epoch: int = begun.epoch
        self.version: int = begun.version
        self.scale: float = begun.scale
        self.rolled_back: bool = begun.rolled_back
        #: Where a checkpoint was gone on from right before this step: this rank's user state in it; else None.
        self.user_state = user_state
        #: The last loss that `backward` was given, detached; for progress lines.
        self.loss = None
        self.losses: list = []  # all of them, and what GradScaler.scale was given and had a backward
        self.scaled = False  # GradScaler.scale was given something
        self.result: Result | None = None
        self.broken = False  # a part of its gradients was pushed, and then something failed

    def push(self, name: str, gradient, dtype=None) -> None:
        """As Job.push."""
        self.job._refuse_ended(self)
        self.job.push(name, gradient, dtype)

    def autocast(self):
        """torch.autocast with the cast's dtype, where this device's autocast has it; else nothing."""
        return self.job.module.autocast() if self.job.module is not None else contextlib.nullcontext()

    def backward(self, loss, *, retain_graph: bool = False) -> None:
        """loss.backward() of the scaled loss. Each gradient is pushed as soon as it is there. `retain_graph` as in
        torch: for another loss with a part of the same graph, which takes `accumulate` where both have a parameter."""
        if self.job.module is None:
            raise errors.WrongState("this job has no torch module; give join one, or push arrays")
        self.job._refuse_ended(self)
        if not hasattr(loss, "detach"):
            raise errors.InvalidArgument("the loss is %s; give a tensor that the module has a part in" % shown(loss))
        if self.scaled and self.scale != 1:
            self.scaled = False  # what is given next may be the loss itself
            raise errors.InvalidArgument("a loss of step %d was given to GradScaler.scale, and step.backward "
                                         "multiplies by the scale as well; give it the loss itself" % self.number)
        self.loss = loss.detach()
        self.losses.append(self.loss)
        try:
            self.job.module.backward(loss, self.scale, retain_graph)
        except BaseException:
            self.broken = True
            raise

    def tell_loss(self, loss) -> None:
        """As Job.tell_loss."""
        self.job._refuse_ended(self)
        self.job.tell_loss(loss)

    def tell_metric(self, name: str, value) -> None:
        """As Job.tell_metric."""
        self.job._refuse_ended(self)
        self.job.tell_metric(name, value)

    def end(self) -> Result:
        """Hands in what was pushed, waits for the verdict. Parameters that were not pushed are absent."""
        if self.result is None:
            self.result = self.job._end(self)
        return self.result

    def __repr__(self):
        return "<ampd step %d of %s, scale %.9g%s>" % (self.number, self.job.name, self.scale,
                                                     ", " + self.result.verdict if self.result else "")


class Parameters(Mapping):
    """name -> numpy array: views of the memory that is pulled into, read-only. bfloat16 comes as its bits, uint16.

    With a module on a CUDA device that shares memory with the server, values come there when an array is taken from
    here: one that was taken before has them from then on, too."""

    def __init__(self, arrays: dict, dtype: str, bring):
        self._arrays, self._dtype, self._bring = arrays, dtype, bring

    def __getitem__(self, name: str) -> numpy.ndarray:
        array = self.place_of(name)
        self._bring()
        return array

    def place_of(self, name: str) -> numpy.ndarray:
        """The array, whatever is in it."""
        try:
            return self._arrays[name]
        except KeyError:
            raise errors.NotFound("the model has no parameter %r; it has %s" % (name, _some(self._arrays))) from None

    def dlpack(self, name: str):
        """The same memory for from_dlpack of any library, in bfloat16 too (ampd.dlpack.Tensor):
        torch.from_dlpack(job.parameters.dlpack("w"))."""
        from ampd import dlpack
        array = self[name].view()
        array.flags.writeable = True
        return dlpack.Tensor(array, self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self):
        return "<%d parameters: %s>" % (len(self), _some(self._arrays))


def _some(names) -> str:
    names = list(names)
    return ", ".join(names[:6]) + (", and %d more" % (len(names) - 6) if len(names) > 6 else "")


class Memory:
    """Memory for all parameters, of its own pages. What views it keeps it."""

    #: Whether parameters that a server on this host has in shared memory stay there; then mapped() and unmapped() are
    #: called.
    stays_shared = False
    #: Bytes of an element of gradients that may be written to the slot; 0: none may.
    slot_width = 0

    def open(self, size: int) -> None:
        # It begins at a page. A forked child has a copy of its own, and huge pages are for private memory.
        self.buffer = mmap.mmap(-1, size + ALIGN, flags=mmap.MAP_PRIVATE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # it is advice
                self.buffer.madvise(mmap.MADV_HUGEPAGE)


# Of handles whose thread does not answer any more: it may still read and write there.
_still_used: list = []


def join_options(rank: int | None, world_size: int | None, worker_name: str | None, replace: bool, take_back: bool,
                 accumulate: int):
    """(struct ampclient_join_options *, what has to stay alive with it)"""
    options = struct("ampclient_join_options", rank=-1 if rank is None else rank,
                     world_size=-1 if world_size is None else world_size, replace=replace, take_back=take_back)
    put(options, "accumulate", accumulate, above_zero=True)
    if worker_name is None:
        return options, None
    kept = ffi.new("char[]", utf8(worker_name, "worker_name"))
    options.worker_name = kept
    return options, kept


class Job:
    """A model joined as a worker. Made by ampd.join; a context manager that leaves at its end."""

    def __init__(self, client: Client, name: str, options, *, max_steps: int = 0, memory: Memory | None = None,
                 gradients: int | None = None):
        self.client, self.name, self.accumulate = client, name, options.accumulate
        self.gradients = gradients  # the library's code of the dtype that they are pushed in; None: their own
        #: As given to join. 0: endless, or joined without a model and so not known here.
        self.max_steps = max_steps
        self.module = None      # ampd.module.Module
        self.optimizer = lambda: None  # of ampd.Optimizer, if one was made: a weak reference
        self.copies = 0         # of gradients or parameters, made by this package
        self._step: Step | None = None
        self._restored: list[bytes] = []
        self._borrowed: list = []
        self._place, self._result = struct("ampclient_step"), struct("ampclient_result")
        self.how_to_push = "call step.push for each parameter before step.end()"
        self.done = False       # begin() has said so
        self._step_count = 0
        self._pushes = 0        # of the step in hand
        self._loss_told = False  # by the program itself, in the step in hand
        self._told: set[str] = set()
        self._server: Server | None = None
        self._takes: dict[str, str] | None = None  # its schedule and weighting, once they have been asked for
        self.memory = memory if memory is not None else Memory()
        self._model = ffi.NULL
        self._restore = ffi.callback("void(void *, uint64_t, const void *, size_t)", self._take_state,
                                      onerror=client._keep_interrupt)
        options.restore_cb = self._restore
        if self.memory.stays_shared:
            self._shared_cb = ffi.callback("void(void *, const struct ampclient_shared_memory *, bool)",
                                           self._tell_shared, onerror=client._keep_interrupt)
            options.shared_cb = self._shared_cb
        place = ffi.new("struct ampclient_model **")
        client.call(lib.ampclient_join, client.handle, utf8(name, "the name of the model"), options, place)
        self._model = place[0]
        self.rank: int = lib.ampclient_rank(self._model)
        self.world_size: int = lib.ampclient_world_size(self._model)
        self._count = lib.ampclient_parameters_count(self._model)
        size = lib.ampclient_memory_size(self._model)
        self.memory.open(size)
        address = ffi.from_buffer(self.memory.buffer, require_writable=True)
        client.call(lib.ampclient_use_memory, self._model, address, len(address))
        self._index: dict[str, int] = {}
        self._parameters: Parameters | None = None
        self._memory_at, self._memory_size = address_of(address), size
        #: Where what was pulled last lies: in `memory`, or in a copy of the server's; 0: it is written over there.
        self._pulled_at = self._memory_at

    def _tell_shared(self, arg, shared, mapped):
        if mapped:
            self.memory.mapped(address_of(shared.data), shared.size_bytes, _NUMPY[shared.dtype].itemsize,
                               shared.writable)
            return
        if self._pulled_at != 0:
            self._bring()
        self._synchronize()
        self.memory.unmapped()

    def _take_state(self, arg, step, data, size):
        self._restored.append(bytes(ffi.buffer(data, size)) if size > 0 else b"")

    # ---- parameters ----

    def tensor(self, index: int):
        """struct ampclient_tensor of a parameter as last pulled."""
        made = ffi.new("struct ampclient_tensor *")
        self.client.call(lib.ampclient_parameter, self.model, index, made)
        return made

    @property
    def parameters(self) -> Parameters:
        """Views of what was pulled last: after the first step or pull."""
        if self._parameters is None:
            arrays = {}
            for i in range(self._count):
                tensor = self._pulled_tensor(i)
                if i == 0:
                    begin = address_of(tensor.data)  # they lie everywhere in the same way
                array = numpy.frombuffer(self.memory.buffer, _NUMPY[tensor.dtype], tensor.elements,
                                         address_of(tensor.data) - begin)
                array.flags.writeable = False
                name = text(tensor.name)
                self._index[name] = i
                arrays[name] = array.reshape([tensor.shape[d] for d in range(tensor.dimensions)])
            self.cast = _DTYPE_NAMES[tensor.dtype]
            self._parameters = Parameters(arrays, self.cast, self._bring)
        return self._parameters

    def _bring(self) -> None:
        """What was pulled last comes to where the arrays are."""
        with self.client._turn:
            if self._pulled_at == 0:
                raise errors.WrongState("the parameters of that step lay in the server's memory, which has others now; "
                                        "begin a step, or call job.pull()")
            if self._pulled_at != self._memory_at:
                ffi.memmove(ffi.cast("void *", self._memory_at), ffi.cast("void *", self._pulled_at),
                            self._memory_size)
            self._pulled_at = self._memory_at

    def _pulled_tensor(self, index: int):
        self.model  # noqa: B018 (a job that has left says that)
        try:
            return self.tensor(index)
        except errors.WrongState:
            raise errors.WrongState("nothing has been pulled yet; begin a step (job.steps() or job.begin()), or call "
                                    "job.pull()") from None

    def pull(self) -> int:
        """The newest version of the parameters, for an evaluation outside of a step; also when the model is done.
        Returns its number."""
        version, model = ffi.new("uint64_t *"), self.model
        self._synchronize()
        try:
            self.client.call(lib.ampclient_pull, model, version)
        except errors.WrongState:
            if self._step is None:
                raise
            raise errors.WrongState("step %d is in hand, whose parameters have come: evaluate with those, or call "
                                    "step.end() first (with ampd.Optimizer they are always the newest)"
                                    % self._step.number) from None
        self._pulled(version[0])
        return version[0]

    def _synchronize(self) -> None:
        if self.module is not None:
            self.module.synchronize()

    def _pulled(self, version: int) -> None:
        self.parameters  # noqa: B018 (made now: views are of memory that exists)
        self._pulled_at = address_of(self.tensor(0).data)
        if self.module is not None:
            self.module.pulled((self._place.epoch, version))

    def state_dict(self, *, masters: bool = True) -> dict[str, typing.Any]:
        """The parameters by name, fp32, with the module's buffers; loads into the module by load_state_dict.

        They are the masters in the newest checkpoint, which the server is asked to write (that takes an operator's
        rights where tokens are in use); with masters=False the cast values of the newest version. torch tensors
        where the job has a module, else numpy arrays."""
        if masters:
            try:
                arrays = self.server.masters(self.name)
            except errors.Denied as error:
                error._say("%s, or call state_dict(masters=False), which has the cast values" % str(error).rstrip("."))
                raise
        else:
            if self._step is None:  # a step in hand has the newest version
                self.pull()
            arrays = {name: as_float32(array, self.cast) for name, array in self.parameters.items()}
        return self.module.state_dict(arrays) if self.module is not None else arrays

    # ---- steps ----

    def begin(self) -> Step | None:
        """Waits for the next step and pulls its parameters. None: the model is done. A step that was begun and not
        ended is begun again."""
        if self._step is not None and not self._step.broken:
            self._warn_once("unended", "%s: step %d was begun and not ended; it is begun again, without what was "
                            "pushed: call step.end() (if it was interrupted, all is well)",
                            self.name, self._step.number)
        self._synchronize()
        # True: Ctrl-C cut off a begin that had its answer. The next step is then told of the rollback, and its state.
        rolled_back = self._place.rolled_back
        done = self.client.call(lib.ampclient_step_begin, self.model, self._place) == 1
        self._place.rolled_back = self._place.rolled_back or rolled_back
        self._give_back()
        if done:
            if not self.done and self._step_count == 0:
                log.warning("%s: all its steps are done already; for another run join with another name, or delete it: "
                            "ampd.connect(%r).delete(%r)", self.name, self.client.endpoint, self.name)
            self.done = True
            return None
        self.done = False  # an operator may have rolled the model back
        self._step_count += 1
        self._pushes = self._result.step = 0
        self._loss_told = False
        self._pulled(self._place.version)
        self._step = Step(self, self._place, self._restored[-1] if self._restored else None)
        self._place.rolled_back = False
        self._restored.clear()
        return self._step

    def steps(self) -> Iterator[Step]:
        """All steps until the model is done, from where the model is: after a crash it goes on there. A step that
        the loop's body has not ended is ended by the loop; one whose backward has failed is begun again."""
        while (step := self.begin()) is not None:
            yield step
            if step.result is None and self.in_hand(step):
                step.end()

    def in_hand(self, step: Step) -> bool:
        """The step has been begun, and neither ended nor begun anew, nor has its backward or a push failed."""
        return self._step is step and not step.broken

    def _refuse_ended(self, step: Step) -> None:
        """Its scale is of the past: what it hands in would go into the step that is in hand now."""
        if step.broken:
            raise errors.WrongState("the backward of step %d failed, or a push of its gradients, and a part of them "
                                    "may have been pushed; begin it again: job.begin()" % step.number)
        if self._step is not step:
            raise errors.WrongState("step %d is over: it has ended, or was begun again; use the step that job.begin() "
                                    "has returned last" % step.number)

    def push(self, name: str, gradient, dtype=None) -> None:
        """Hands in the scaled gradient of a parameter: a numpy array of its shape, float16 or float32, all of a step
        alike; `dtype="bfloat16"` with an array of uint16 that has the bits. Or anything with __dlpack__ on the CPU.
        Sending begins at once; the array must stay as it is until the step has ended."""
        array, code = self._gradient(name, gradient, dtype)
        if self.accumulate == 1:
            self._borrowed.append(array)  # first: an exception of a signal handler may come right behind the call
        self.push_at(self._index[name], ffi.from_buffer(array), code)  # array.ctypes takes four times as long

    def push_at(self, index: int, place, code: int) -> None:
        """The same of a parameter by its index, whose gradient lies where a pointer says: contiguous, of its size."""
        model = self.model
        if self._step is None:
            raise errors.WrongState("no step has begun; push between job.begin() and step.end()")
        if code == lib.AMP_F16 and self._step.scale == 1:
            self._warn_once("float16", "%s: gradients are pushed in float16 with a loss scale of 1, and what is below "
                            "3e-8 becomes 0; make the model with scaler=ampd.DynamicScaler(), or push them in bfloat16 "
                            "or float32 (if it has one, overflows have brought the scale down)", self.name)
        try:
            self.client.call(lib.ampclient_push, model, index, place, code)
        except errors.Error as error:
            number, name = "parameter %d" % index, "parameter %s" % list(self._index)[index]
            sentence = str(error).replace(number + ":", name + ":").replace(number + " ", name + " ")
            if sentence.endswith("use one dtype"):
                sentence += ", or give ampd.join gradients=, which converts"
            error._say(sentence)
            raise
        self._pushes += 1

    def _gradient_place(self, index: int, code: int) -> int:
        """The address that the gradient of a parameter may be written to, in the slot."""
        place = ffi.new("void **")
        self.client.call(lib.ampclient_gradient, self.model, index, code, place)
        return address_of(place[0])

    def _index_of(self, name: str) -> int:
        self.parameters.place_of(name)  # noqa: B018 (a sentence for a name that there is not)
        return self._index[name]

    def _gradient(self, name: str, gradient, dtype):
        wanted = self.parameters.place_of(name).shape
        if getattr(gradient, "is_neg", bool)():  # torch's capsule has the numbers with the other sign
            self.copies += 1
            gradient = gradient.resolve_neg()
        if not isinstance(gradient, numpy.ndarray) and hasattr(gradient, "__dlpack__"):
            from ampd import dlpack
            gradient, found = dlpack.array_of(gradient)
            dtype = dtype if dtype is not None else found
        array = gradient
        if type(array) is not numpy.ndarray:
            array = array_of("the gradient of %s" % name, gradient)
        if not array.dtype.isnative:  # the bytes of each number are in the other order
            self.copies += 1
            array = array.astype(array.dtype.newbyteorder("="))
        if array.shape != wanted:
            raise errors.InvalidArgument("the gradient of %s has shape %s, and the parameter %s; give the same shape"
                                         % (name, array.shape, wanted))
        code = _DTYPES.get(array.dtype) if dtype is None else spec.dtype_of(dtype)
        fits = code is not None and (dtype is None or array.dtype == _NUMPY[code])
        is_converted = dtype is None and self.gradients is not None and not fits and array.dtype == numpy.float64
        if not fits and not is_converted:
            raise errors.InvalidArgument(
                "the gradient of %s is an array of %s; give float16, float32, or bfloat16 as uint16 with "
                "dtype=\"bfloat16\", or ampd.join gradients=\"float32\", which converts float64" % (name, array.dtype))
        if self.gradients not in (None, code):
            self.copies += 1
            array, code = converted(array, code, self.gradients), self.gradients
        elif not array.flags.c_contiguous:
            self.copies += 1
            array = numpy.ascontiguousarray(array)
        return array, code

    def set_weight(self, weight: float) -> None:
        """What this worker's gradients count for from now on (weighting="pushed"), for example its samples."""
        number = number_of(weight, "the weight")
        if number != 0 and ffi.new("float *", number)[0] == 0:
            raise errors.InvalidArgument("the weight is %s, which is rounded to 0; give a larger number"
                                         % shown(weight))
        self._refuse_unless("weighting", "pushed", "weight", 'weighting="pushed"')
        self.client.call(lib.ampclient_set_weight, self.model, number)

    def set_learning_rate(self, rate: float) -> None:
        """The learning rate from the step on whose first push has not been made (schedule=ampd.Worker())."""
        number = number_of(rate, "the learning rate")
        self._refuse_unless("schedule", "worker", "learning rate", "schedule=ampd.Worker()")
        self.client.call(lib.ampclient_set_learning_rate, self.model, number)

    def _refuse_unless(self, field: str, wanted: str, what: str, how: str) -> None:
        """What the model does not take from its workers is refused here: the server would refuse the whole step. The
        server is asked once what the model has."""
        self.model  # noqa: B018 (a job that has left says that)
        if self._takes is None:
            found = self.server.specification(self.name)
            self._takes = {"schedule": found.schedule.kind, "weighting": found.weighting}
        if self._takes[field] != wanted:
            raise errors.WrongState("the %s of %s is %s, and takes no %s of a worker; make a model with %s"
                                    % (field, self.name, self._takes[field], what, how))

    def tell_loss(self, loss) -> None:
        """Tells the loss of this worker's samples in the step in hand, for the step's row in the history: a number, or
        an array or a tensor with one (of a device, it is waited for). The loss given to Step.backward
        or GradScaler.scale is sent by itself when the step ends; this one replaces it. No verdict depends on it."""
        self._tell(lib.ampclient_loss, number_of(loss, "the loss"))
        self._loss_told = True

    def tell_metric(self, name: str, value) -> None:
        """The same of another number, by a name of 1 to 32 bytes without "=" and ";"; up to 8 of them a step."""
        self._tell(lib.ampclient_metric, utf8(name, "the name of the metric"), number_of(value, "the metric %s" % name))

    def _tell(self, function, *values) -> None:
        model = self.model
        try:
            self.client.call(function, model, *values)
        except errors.WrongState:
            if self._step is not None:
                raise
            raise errors.WrongState("no step has begun; call it between job.begin() and step.end(), with "
                                    "ampd.Optimizer before its step()") from None

    def _tell_loss_of(self, step: Step) -> None:
        """Once all gradients have come, a loss of a device has, too: to read it waits for nothing."""
        losses = step.losses or ([step.loss] if step.loss is not None else [])
        if self._loss_told or not losses:
            return
        try:
            # With several, the gradient that was pushed is that of their sum.
            self.tell_loss(sum(number_of(one, "the loss") for one in losses))
        except errors.InvalidArgument as error:
            self._warn_once("loss", "%s: the history gets no loss: %s", self.name, error)
        except errors.WrongState:
            pass  # the end of the step says why

    def set_user_state(self, state: bytes) -> None:
        """At most 64 KiB that are kept with the verdict of the step that ends next, and given back by a step that
        goes on from a checkpoint (Step.user_state)."""
        if not isinstance(state, (bytes, bytearray, memoryview)):
            raise errors.InvalidArgument("the user state is %s; give bytes" % shown(state))
        self.client.call(lib.ampclient_set_user_state, self.model, bytes(state), len(state))

    @property
    def user_state(self) -> bytes:
        """This rank's user state in the checkpoint that the present epoch began from; b"": none."""
        data, size = ffi.new("const void **"), ffi.new("size_t *")
        self.client.call(lib.ampclient_user_state, self.model, data, size)
        return bytes(ffi.buffer(data[0], size[0])) if size[0] > 0 else b""

    def _end(self, step: Step) -> Result:
        self._refuse_ended(step)
        if self._result.step == 0:  # else Ctrl-C has cut off a call that had brought the verdict
            self._ask_verdict(step)
        step.result = result = self._take_result(self._result)
        self._give_back()
        if result.verdict in _OWN_WORDS:
            self._forget_shared()
        return result

    def _ask_verdict(self, step: Step) -> None:
        if self.module is not None:
            self.module.finish()
        self._tell_loss_of(step)
        if self._pushes == 0:
            self._warn_once("empty", "%s: rank %d has pushed no gradient in step %d, which counts as zeros; %s",
                            self.name, self.rank, step.number, self.how_to_push)
        try:
            self.client.call(lib.ampclient_step_end, self.model, self._result)
        except errors.RankTaken:
            self._forget_shared()
            raise

    def _forget_shared(self) -> None:
        """The model goes on without this worker, and the server may write over what it has pulled in shared memory."""
        if self._pulled_at != self._memory_at:
            self._pulled_at = 0

    def _warn_once(self, kind: str, sentence: str, *values) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning(sentence, *values)

    def _give_back(self) -> None:
        """No step is in hand, and the library has let go of its gradients."""
        self._step = None
        self._borrowed.clear()
        if self.module is not None:
            self.module.ended()

    def _take_result(self, said) -> Result:
        overflows = tuple(
            Overflow(text(one.parameter), one.rank if one.rank >= 0 else None, text(one.worker), one.inf_count,
                     one.nan_count, one.first_index, one.largest_finite)
            for one in (said.overflows[i] for i in range(said.overflows_count)))
        result = Result(said.step, said.epoch, _VERDICTS[said.verdict], said.applied, said.version, said.norm,
                        said.clip, said.scale, said.new_scale, overflows, said.overflow_parameters, said.durable_step)
        object.__setattr__(result, "_job", self)
        return result

    # ---- the rest ----

    @property
    def model(self):
        if not self._model:
            raise errors.WrongState("this job has left %s; join again" % self.name)
        return self._model

    @property
    def server(self) -> Server:
        """The server's side, over this job's connection: status, history, checkpoints (ampd.Server)."""
        if not self._model:
            raise errors.WrongState("this job has left %s; ampd.connect(%r) has what job.server has: masters(%r)"
                                    % (self.name, self.client.endpoint, self.name))
        if self._server is None:
            from ampd.server import Server
            self._server = Server(self.client, joined=self.name)
        return self._server

    @property
    def shares_memory(self) -> bool:
        """Whether parameters and gradients lie in memory shared with the server now: from the first step on, where the
        endpoint is a unix socket. Where they do not, the logger "ampd" says why, at INFO."""
        return self.client.call(lib.ampclient_shares_memory, self.model, take=bool)

    def status(self) -> ModelStatus:
        """How the model stands (ampd.ModelStatus)."""
        return self.server.model(self.name)

    def leave(self) -> None:
        """Gives the rank back and closes the connection. Views of parameters remain valid, with what was pulled last.
        May be called again. Not in a signal handler while a call waits, nor in a handler of the logger. In a forked
        child nothing is given back: the rank is the parent's."""
        if self.client.is_foreign:
            self._model = ffi.NULL
            return
        self.client.refuse_within_call()
        with self.client._turn:  # a call that another thread has begun finds the connection closed, not the model gone
            model, self._model = self._model, ffi.NULL
            if model == ffi.NULL:
                return
            try:
                if self.module is not None:
                    self.module.left()
                if self._pulled_at != 0:
                    self._bring()  # before others may go on without this worker, and the server writes over it
                self.client.call(lib.ampclient_leave, model)
            except errors.Internal:
                _still_used.append((self.memory, self._borrowed, self.module))
                raise
            finally:
                self.client.close()

    close = leave

    def __del__(self):
        # Before gradients and parameters are freed, the library must have let go of them.
        if getattr(self, "_model", ffi.NULL) != ffi.NULL:
            self.client.close(keeps=self)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind, value, traceback) -> None:
        if kind is None:
            self.leave()
            return
        with contextlib.suppress(Exception):  # what went wrong first is to be seen
            self.leave()

    def __reduce__(self):
        raise errors.WrongState("the job %s has a connection, of which there is no copy; keep it outside of what is "
                                "copied or pickled, as a module or a dataset (job.state_dict() can be saved)"
                                % self.name)

    def __repr__(self):
        where = "left" if self._model == ffi.NULL else "step %d" % self._step.number if self._step else "between steps"
        return "<ampd job %s: rank %d of %d, %s, on %s>" % (self.name, self.rank, self.world_size, where,
                                                            self.client.endpoint)


def number_of(value, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise errors.InvalidArgument("%s is %s; give one number" % (what, shown(value))) from None


def array_of(what: str, value) -> numpy.ndarray:
    """What numpy makes of a value, whose name for the caller is `what`: of a tensor of torch with floating-point
    numbers these in float32, since numpy takes none that requires a gradient, is a bfloat16 or lies on a device."""
    if type(value) is numpy.ndarray:
        return value
    if numpy.ma.is_masked(value):
        raise errors.InvalidArgument("%s is a masked array, and its mask would be lost; give its filled(0), or numbers "
                                     "of your own in their places" % what)
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() else value
        return numpy.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # the last one is torch's
        raise errors.InvalidArgument("%s is a %s, of which numpy makes no array: %s"
                                     % (what, type(value).__name__, str(error).partition("\n")[0])) from None


def as_float32(array: numpy.ndarray, cast: str) -> numpy.ndarray:
    """A copy in float32 of an array in the dtype of the cast: bfloat16 is uint16 here."""
    if cast != "bfloat16":
        return array.astype(numpy.float32)
    # numpy makes plain numbers of what has no dimensions, but not by `out`.
    bits = array.astype(numpy.uint32)
    return numpy.left_shift(bits, numpy.uint32(16), out=bits).view(numpy.float32)


def to_bfloat16(array) -> numpy.ndarray:
    """The bits of an array as bfloat16, rounded to nearest even, for push(..., dtype="bfloat16")."""
    values = array_of("the array", array)
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16).reshape(values.shape)
    return numpy.where(numpy.isnan(values), numpy.uint16(0x7FC0), rounded)


def converted(array: numpy.ndarray, code: int | None, wanted: int) -> numpy.ndarray:
    """A contiguous copy in another dtype, by the library's codes; None: as numpy has it. What is too large for it
    becomes an Inf."""
    with numpy.errstate(over="ignore"):
        values = as_float32(array, _DTYPE_NAMES.get(code, ""))
        if wanted == lib.AMP_BF16:
            return numpy.ascontiguousarray(to_bfloat16(values))
        return numpy.ascontiguousarray(values, _NUMPY[wanted])


def load(client: Client, name: str, values: list) -> bool:
    """Gives a model its first values: contiguous float32 arrays in the order of its parameters. False: it had some."""
    pointers = ffi.new("float *[]", [ffi.cast("float *", array.ctypes.data) for array in values])
    already = ffi.new("bool *")
    try:
        client.call(lib.ampclient_load, client.handle, utf8(name, "the name of the model"), pointers, len(values),
                    already)
    except errors.Internal:
        _still_used.append(values)
        raise
    return not already[0]


def elements(shape) -> int:
    return math.prod(shape)
