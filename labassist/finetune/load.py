"""Load a model that lies here, in as many bits as asked, with every usual failure said in one line."""

from __future__ import annotations

from typing import Any

from labassist.errors import InputError
from labassist.finetune import tokens
from labassist.finetune.model_folder import Model


def tokenizer(base: Model, *, chat: bool) -> Any:
    """Return a model's tokenizer, with a token to pad with. Raises InputError where `chat` needs a template it lacks.

    Where nothing is set the end token pads: the trainer leaves padding out of the loss by its place and not by its
    value, so that the end of an answer is still learned.
    """
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(base.folder)
    if chat:
        tokens.need_template(made)
    if made.pad_token is None:
        made.pad_token = made.eos_token
    return made


def model(base: Model, quantised: Any = None, *, trust_remote_code: bool = False) -> Any:
    """Return the model in bf16, or quantised as a BitsAndBytesConfig says; on the GPU where there is one.

    Raises InputError where bitsandbytes cannot work here, and where the model does not fit.
    """
    import torch
    from transformers import AutoModelForCausalLM

    gpu = torch.cuda.is_available()
    if quantised is not None:
        need_bitsandbytes(gpu)
    try:
        return AutoModelForCausalLM.from_pretrained(
            base.folder,
            quantization_config=quantised,
            dtype=torch.bfloat16,
            device_map={"": 0} if gpu else None,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
        )
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the model does not fit: {str(error).split('. ')[0]}",
            where=base.name,
            mend="take 4 bits, a smaller model, or a larger card (labassist plan memory says which)",
        ) from None


def quiet() -> None:
    """Keep progress bars out of a run's log, and a warning that is none; call it before the model is loaded."""
    import logging as standard

    # It misses a kernel from the hub that only speeds inference up, and says so as if something had failed.
    standard.getLogger("bitsandbytes.backends.cpu.ops").setLevel(standard.ERROR)

    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()


def need_bitsandbytes(gpu: bool) -> None:
    """Raise InputError where bitsandbytes is missing, or has no library for the CUDA of this torch."""
    import torch

    try:
        import bitsandbytes
    except (ImportError, OSError, RuntimeError) as error:
        raise InputError(
            f"bitsandbytes cannot be imported: {(str(error).splitlines() or [''])[0]}",
            where="model.method",
            mend="pip install 'bitsandbytes>=0.49', or --set model.method=lora",
        ) from None
    library = getattr(bitsandbytes.cextension, "lib", None)
    broken = library is None or type(library).__name__.startswith("Error")
    if gpu and (broken or not getattr(library, "compiled_with_cuda", True)):
        cuda = torch.version.cuda
        raise InputError(
            f"bitsandbytes {bitsandbytes.__version__} has no library for CUDA {cuda}",
            where="model.method",
            mend="install a bitsandbytes that has it (pip install -U bitsandbytes; `python -m bitsandbytes` says what "
            "it looks for), or --set model.method=lora",
        )
