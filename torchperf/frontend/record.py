"""Runs a module on the meta device and writes every operator to a tape.

The module path of a forward op is the stack of module calls. Backward has no module calls: autograd numbers every
node by the forward op that made it, so the greatest recorded number not above the node's own names the module
(greatest, not equal: in-place ops on views make nodes of their own).
"""

from __future__ import annotations

import bisect
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..graph.errors import TorchperfError
from . import answers
from .host import Host
from .tape import Key, Tape

DTYPES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8_e5m2", torch.int64: "i64", torch.int32: "i32",
    torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64",
    torch.complex128: "c128", torch.uint16: "u16", torch.uint32: "u32", torch.uint64: "u64", torch.complex32: "c32",
}  # fmt: skip
for _name, _short in (("float8_e8m0fnu", "e8m0"), ("float4_e2m1fn_x2", "fp4"), ("float8_e4m3fnuz", "fp8")):
    if hasattr(torch, _name):
        DTYPES[getattr(torch, _name)] = _short

_SKIPPED_ARGUMENTS = frozenset({"device", "layout", "pin_memory", "generator", "non_blocking"})


class Recorder(TorchDispatchMode):
    """Records what runs inside `with Recorder(module, inputs) as recorder: ...` on `recorder.tape`."""

    def __init__(self, module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape()
        self._keep: list[Any] = []  # storages stay alive, so that no id is given twice
        self._ids: dict[int, int] = {}
        self._stack: list[str] = []
        self._again = 0  # of the modules on the stack, those that were called inside backward
        self._modules = dict(module.named_modules())
        self._module_names = {id(m): name for name, m in self._modules.items()}
        self._parameter_names: dict[int, str] = {}
        self._sequence_numbers: list[int] = []
        self._sequence_modules: list[str] = []
        self._schemas: dict[Any, tuple[str, list[str], dict[str, Any]]] = {}
        self._keys: dict[Key, Key] = {}
        self._module = module
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._parameter_names.setdefault(id(parameter), name)
            self._declare(parameter, "param", name)
        for name, buffer in module.named_buffers(remove_duplicate=False):
            self._declare(buffer, "buffer", name)
        for name, tensor in inputs.items():
            self._declare(tensor, "input", name)
        self._host = Host(self.mark) if any(t.device.type == "cpu" for t in inputs.values()) else None

    def _declare(self, tensor: torch.Tensor, kind: str, name: str) -> None:
        known = len(self._ids)
        storage = self._storage_id(tensor.untyped_storage())
        if storage == known:
            self.tape.kinds[storage], self.tape.names[storage] = kind, name

    def _storage_id(self, storage: Any) -> int:
        data = storage._cdata
        found = self._ids.get(data)
        if found is None:
            found = self._ids[data] = len(self._ids)
            self._keep.append(storage)
            self.tape.kinds.append("activation")
            self.tape.names.append(None)
        return found

    def __enter__(self) -> Recorder:
        self._hooks = (
            nn.modules.module.register_module_forward_pre_hook(self._enter_module),
            nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True),
        )
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def _enter_module(self, module: nn.Module, _inputs: Any) -> None:
        name = self._module_names.get(id(module))
        if name is None:  # made during forward: it belongs to its caller
            name = self._stack[-1] if self._stack else ""
        self._stack.append(name)
        self._again += torch._C._current_graph_task_id() != -1

    def _leave_module(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
            self._again -= bool(self._again)

    @property
    def module(self) -> str:
        """Path of the module that runs now."""
        return self._stack[-1] if self._stack else ""

    def mark(self, tensor: torch.Tensor, kind: str, name: str) -> None:
        """Say what a tensor's storage is, whoever made it."""
        storage = self._storage_id(tensor.untyped_storage())
        self.tape.kinds[storage], self.tape.names[storage] = kind, name

    def hold(self, outputs: list[torch.Tensor]) -> None:
        """Mark what the caller holds until the end of backward: logits, loss."""
        self.tape.outputs = sorted({self._storage_id(t.untyped_storage()) for t in outputs})

    def finish(self) -> Tape:
        """Name the parameters' gradients and give the tape away."""
        for name, parameter in self._module.named_parameters():
            if parameter.grad is not None:
                self.tape.reached.add(name)
                storage = self._storage_id(parameter.grad.untyped_storage())
                self.tape.kinds[storage], self.tape.names[storage] = "grad", name
        return self.tape

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is answers.ITEM and args[0].device.type == "meta":
            return self._answer_item(args[0])
        if func in answers.TESTS and args[0].device.type == "meta":
            self._guess(f"`{func.__name__.split('.')[0]}` taken as true")
            return True
        if self._host is not None:
            moved = self._host.moved(func, args, kwargs)
            if moved is None:  # numbers that the model computes with: no work of the device
                return self._host.run(func, args, kwargs)
            args, kwargs = moved
        out = self._run(func, args, kwargs)
        phase, module = self._place()
        self._write(func, phase, module, args, kwargs, out)
        return out

    def _answer_item(self, tensor: torch.Tensor) -> bool | int:
        if tensor.dtype is torch.long and self._class() in answers.WHOLE:
            return self._whole()
        if tensor.dtype is not torch.bool:
            raise TorchperfError(
                "the model reads a number out of a tensor (`.item()`), which has no data here",
                facts=[("in", f"`{self._where()}`"), ("dtype", DTYPES.get(tensor.dtype, str(tensor.dtype)))],
                hint="make it a Python number, or keep it a tensor",
            )
        answer, why = answers.BOOLS.get(self._class(), (True, ""))
        self._guess(f"`.item()` of a bool taken as {str(answer).lower()}{why and f' ({why})'}")
        return answer

    def _whole(self) -> int:
        number, why = answers.WHOLE[self._class()]
        self._guess(f"`.item()` taken as {number} ({why})")
        return number

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What the op returns; what a mask picks or writes is answered where answers.py says so."""
        if func is answers.READ and len(answers.masks(args[1])) == 1:
            in_backward = torch._C._current_graph_task_id() != -1  # the gradient of what was written through it
            if in_backward or self._class() in answers.WHOLE:
                self._guess("a mask taken to pick all" + " of a gradient" * in_backward)
                return answers.picked(*args)
        elif func in answers.WRITTEN and answers.masks(args[1]):
            return answers.written(func, args[0])
        elif func is answers.COPY and answers.to_host(args[0], kwargs) and self._class() in answers.WHOLE:
            return torch.full(args[0].shape, self._whole())
        return func(*args, **kwargs)

    def _class(self) -> str:
        """The class of the module that runs now."""
        return type(self._modules.get(self._stack[-1], self._module) if self._stack else self._module).__name__

    def _where(self) -> str:
        return (self._stack[-1] if self._stack else "") or type(self._module).__name__

    def _guess(self, what: str) -> None:
        text = f"{what} in `{self._where()}`"
        self.tape.guesses[text] = self.tape.guesses.get(text, 0) + 1

    def _place(self) -> tuple[str, str]:
        if torch._C._current_graph_task_id() == -1:
            return "forward", self._note_sequence()
        if self._again:  # modules run inside backward: activation checkpointing
            return "recompute", self._note_sequence()
        node = torch._C._current_autograd_node()
        variable = getattr(node, "variable", None)
        if variable is not None:  # AccumulateGrad
            name = self._parameter_names.get(id(variable), "")  # an input that asks for its gradient has none
            return "backward", name.rpartition(".")[0]
        elif node is not None:
            i = bisect.bisect_right(self._sequence_numbers, node._sequence_nr()) - 1
            if i >= 0:
                return "backward", self._sequence_modules[i]
        self.tape.unattributed += 1
        return "backward", ""

    def _note_sequence(self) -> str:
        module = self._stack[-1] if self._stack else ""
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        numbers = self._sequence_numbers
        if not numbers or number > numbers[-1]:
            numbers.append(number)
            self._sequence_modules.append(module)
        return module

    def _schema(self, func: Any) -> tuple[str, list[str], dict[str, Any]]:
        found = self._schemas.get(func)
        if found is None:
            arguments = func._schema.arguments
            found = (str(func), [a.name for a in arguments], {a.name: a for a in arguments})
            self._schemas[func] = found
        return found

    def _write(self, func: Any, phase: str, module: str, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        tape = self.tape
        name, arguments, _ = self._schema(func)
        key: list[object] = [name, phase]
        for argument, value in zip(arguments, args, strict=False):
            if argument not in _SKIPPED_ARGUMENTS:
                self._encode("T", argument, value, key)
        for argument, value in kwargs.items():
            if argument not in _SKIPPED_ARGUMENTS:
                self._encode("T", argument, value, key)
        self._encode("O", "", out, key)
        frozen = tuple(key)
        tape.keys.append(self._keys.setdefault(frozen, frozen))
        tape.modules.append(module)
        tape.slot_start.append(len(tape.slots))
        tape.tensor_start.append(len(tape.storages))

    def _encode(self, tag: str, argument: str, value: Any, key: list[object]) -> None:
        tape = self.tape
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            tape.storages.append(self._storage_id(storage))
            key.append((tag, argument, value.dim(), DTYPES[value.dtype]))
            slots = tape.slots
            slots.extend(value.shape)
            slots.extend(0 if d == 1 else s for d, s in zip(value.shape, value.stride(), strict=True))
            slots.append(int(value.storage_offset()))
            slots.append(storage.nbytes())
        elif value is None:
            if tag == "O":
                key.append(("C", "->", None))
        elif isinstance(value, (bool, str)):
            key.append(("C", argument, value))
        elif isinstance(value, int):
            key.append(("I", argument))
            tape.slots.append(value)
        elif isinstance(value, float):
            key.append(("F", argument))
            tape.slots.append(value)
        elif isinstance(value, (list, tuple)):
            if value and all(isinstance(item, torch.Tensor) for item in value):
                for item in value:
                    self._encode(tag, argument, item, key)
                return
            if any(isinstance(item, torch.Tensor) for item in value):  # index(x, [None, i])
                key.append(("C", argument, tuple(item is not None for item in value)))
                for item in value:
                    self._encode(tag, argument, item, key)
                return
            key.append(("(", argument, len(value)))
            for item in value:
                if item is None:
                    key.append(("C", argument, None))
                else:
                    self._encode(tag, argument, item, key)
        elif isinstance(value, torch.dtype):
            key.append(("C", argument, DTYPES.get(value, str(value))))
        elif isinstance(value, torch.memory_format):
            key.append(("C", argument, str(value).removeprefix("torch.")))
        elif isinstance(value, complex):
            key.append(("C", argument, repr(value)))
        else:
            key.append(("C", argument, type(value).__name__))
