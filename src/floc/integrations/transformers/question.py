"""Embed a question in the space of the visual tokens, to steer a selection by it."""

from typing import Any

import torch

from floc.families.parts import unwrap_model


@torch.no_grad()
def embed_text(model: Any, processor: Any, text: str) -> torch.Tensor:
    """Return [Q, D], the rows of a model's embedding table for the tokens of a text, without special tokens.

        query = embed_text(model, processor, "What is on the table?")
        video = video.at(ratio=1/32, query=query, query_weight=0.25)

    Args:
        model: of transformers.
        processor: of the model, or its tokenizer.
        text: A question.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    if not ids.shape[1]:
        raise ValueError(f"a question must have words, got {text!r}")
    table = unwrap_model(model).get_input_embeddings()
    return table(ids.to(table.weight.device))[0]
