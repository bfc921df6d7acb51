"""Tiny checkpoints on disk: a model, and its processor."""

# no `from __future__ import annotations`: see tiny_configs.py
from pathlib import Path
from typing import Any

import torch

from tests.integrations.transformers.processors import create_processor
from tests.integrations.transformers.tiny_configs import create_config, set_token_ids, transformers


def create(kind: str, **text: Any) -> tuple[Any, Any]:
    """Return a model that answers with letters, and its processor; `text` changes the config of the language model."""
    processor = create_processor(kind)
    config = create_config(kind)
    set_token_ids(config, kind)
    config.get_text_config().update(text)
    vocabulary = config.get_text_config().vocab_size = len(processor.tokenizer) + 7
    torch.manual_seed(0)
    model = transformers.AutoModelForMultimodalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape) * 0.25)
    model.generation_config.update(eos_token_id=None, bos_token_id=None, pad_token_id=0)
    model.generation_config.suppress_tokens = list(range(256, vocabulary))
    return model, processor


def save(kind: str, folder: Path, **text: Any) -> Path:
    """Save a model and its processor."""
    for part in create(kind, **text):
        part.save_pretrained(folder)
    return folder
