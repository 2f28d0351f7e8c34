"""Builds the model that a plan names and runs one training step, or one pass, on fake tensors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from labassist.planner.dryrun import attention
from labassist.planner.dryrun.allocator import reserved
from labassist.planner.dryrun.casts import cuda_casts
from labassist.planner.dryrun.count import LiveBytes
from labassist.planner.dryrun.head import ChunkedLoss

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "mixed": torch.float32}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Return `{"loaded", "peak", "reserved", "trainable"}`, bytes and a count, of the second of two steps.

    In it the optimizer's states exist already. `reserved` is what the caching allocator then holds.
    `request` is `labassist.planner.dry.request`'s document.
    """
    counter = LiveBytes()
    with FakeTensorMode(allow_non_fake_inputs=True), counter, cuda_casts():
        model = _build(request)
        for tensor in [*model.parameters(), *model.buffers()]:
            counter.take(tensor.data)
        loaded = counter.now
        if request["method"] == "inference":
            answer = _infer(model, request, counter)
        else:
            answer = _train(model, request, counter)
    built = answer.pop("built")
    return {"loaded": loaded, **answer, "reserved": reserved(counter.events, built)}


def _build(request: dict[str, Any]) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    fields = dict(request["config"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config._attn_implementation = _attention(request)
    dtype = DTYPES[request["dtype"]]
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with no_init_weights():
            model: Any = AutoModelForCausalLM.from_config(config)
        model.tie_weights()
    finally:
        torch.set_default_dtype(before)
    if request["method"] == "qlora":
        from labassist.planner.dryrun.quantised import quantise

        quantise(model, skip={"lm_head"})
    made: nn.Module = model
    return made


def _attention(request: dict[str, Any]) -> str:
    if request["attention"] == "eager":
        return "eager"
    if request["padded"]:
        return "sdpa"
    attention.register()
    return attention.NAME


def _infer(model: nn.Module, request: dict[str, Any], counter: LiveBytes) -> dict[str, Any]:
    model.eval()
    counter.peak, built = counter.now, len(counter.events)
    with torch.no_grad():
        ids = torch.zeros((request["batch"], request["seq"]), dtype=torch.int64)
        # As `generate` does: the logits of the last position only.
        out = model(input_ids=ids, use_cache=True, logits_to_keep=1)
    del out
    return {"peak": counter.peak, "trainable": 0, "built": built}


def _train(model: nn.Module, request: dict[str, Any], counter: LiveBytes) -> dict[str, Any]:
    stock = request["trainer"] == "trl"
    if request["method"] in ("lora", "qlora"):
        model = _adapt(model, request)
    model.train()
    if request["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        if request["method"] != "full":
            model.enable_input_require_grads()  # type: ignore[operator]
    trainable = [p for p in model.parameters() if p.requires_grad]
    # transformers' Trainer keeps the moments of embeddings in 32 bits.
    tables = [one.weight for one in model.modules() if isinstance(one, nn.Embedding)] if stock else []
    step = _optimizer(trainable, request["optim"], {id(table) for table in tables})
    autocast = request["dtype"] == "mixed" or (stock and request["dtype"] == "bf16")
    vocabulary = model.get_output_embeddings()  # type: ignore[operator]
    built = len(counter.events)
    for _number in range(2):
        counter.peak = counter.now
        for _micro in range(request["accumulate"]):
            ids = torch.zeros((request["batch"], request["seq"]), dtype=torch.int64)
            with _cast(autocast):
                if request["loss"] == "chunked":
                    out, loss = None, _chunked(model, ids, vocabulary)
                else:
                    out = model(input_ids=ids, labels=ids, use_cache=False)
                    loss = out.loss
            if stock:
                out = None
            # A plain loop holds the logits through the backward; transformers' Trainer has dropped them.
            loss.backward()  # type: ignore[no-untyped-call]
            del loss, ids, out
        if stock:
            norms = torch._foreach_norm([p.grad for p in trainable if p.grad is not None])
            torch.linalg.vector_norm(torch.stack(norms))
            del norms
        step()
        for parameter in trainable:
            if stock:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
    return {
        "peak": counter.peak,
        "trainable": sum(p.numel() for p in trainable),
        "built": built,
    }


@contextlib.contextmanager
def _cast(on: bool) -> Iterator[None]:
    if not on:
        yield
        return
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def _adapt(model: nn.Module, request: dict[str, Any]) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    targets = request["lora_targets"]
    config = LoraConfig(
        r=request["lora_r"],
        lora_alpha=32,
        lora_dropout=request["lora_dropout"],
        target_modules=targets if isinstance(targets, str) else list(targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    # `Module.to` fails on fake parameters, so it is out of force while peft works, and peft's casts are done
    # here: TRL keeps the adapters of a 4-bit base in bf16, peft makes those of a 16-bit base fp32.
    dtype = torch.bfloat16 if request["method"] == "qlora" else torch.float32
    with mock.patch.object(nn.Module, "to", lambda module, *_, **__: module):
        adapted: nn.Module = get_peft_model(model, config, autocast_adapter_dtype=False)
    for module in adapted.modules():
        if isinstance(module, nn.Dropout):
            # CUDA's kernel keeps a mask of one byte a number; the CPU's form keeps one in x's dtype.
            module.forward = functools.partial(_dropout, module.p)  # type: ignore[method-assign]
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.requires_grad and parameter.dtype != dtype:
                module.register_parameter(name, nn.Parameter(torch.empty(parameter.shape, dtype=dtype)))
    return adapted


def _dropout(rate: float, x: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(x, rate, True)[0] if rate else x


def _chunked(model: Any, ids: torch.Tensor, head: Any) -> torch.Tensor:
    """Return the loss as TRL's patched forward does: backbone, the shifted positions picked, then the head."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = inner.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    flat = hidden.reshape(-1, hidden.shape[-1])
    picked = flat[torch.zeros(flat.shape[0], dtype=torch.int64)]
    apply: Any = ChunkedLoss.apply
    per_token = apply(picked, head.weight)
    loss: torch.Tensor = -per_token.sum()
    return loss


def _optimizer(parameters: list[nn.Parameter], name: str, wide: set[int]) -> Any:
    """Return a function that makes one step with the memory of the named optimizer.

    `wide` are the ids of parameters whose moments an 8-bit optimizer keeps in fp32.
    """
    from labassist.planner.optim import describe

    kind = describe(name)
    if kind.name == "adamw" and not kind.eight_bit and not kind.paged:
        made = torch.optim.AdamW(parameters, lr=1e-5, foreach=not kind.fused, fused=kind.fused or None)
        return made.step
    if kind.name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-5, momentum=0.0, foreach=True).step
    states: list[torch.Tensor] = []

    def step() -> None:
        if not states:
            for parameter in parameters:
                count = parameter.numel()
                in_8_bit = kind.eight_bit and id(parameter) not in wide
                sizes = kind.buffers(count) if in_8_bit else [4 * count] * kind.moments
                if kind.pages(count):
                    sizes = sizes[kind.moments :]
                states.extend(torch.empty(size, dtype=torch.uint8) for size in sizes)

    return step
