"""The classes that stand in for vLLM's; importing this needs vLLM."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.model_executor.models import qwen2_5_vl, qwen2_vl
from vllm.multimodal import MULTIMODAL_REGISTRY

from .choice import kept_indices
from .plugin import settings_of
from .positions import Medium, grid_places, of_prompt, placed, with_places
from .settings import Settings


class ShortPrompts:
    """Before a processor of vLLM: as many placeholders for a video as tokens are kept, and hashes of their own."""

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> list[Any]:
        updates = super()._get_prompt_updates(mm_items, hf_processor_mm_kwargs, out_mm_kwargs)  # type: ignore[misc]
        settings = settings_of(self.info.ctx.model_config)  # type: ignore[attr-defined]
        if settings is None:
            return updates
        merge = self.info.get_hf_config().vision_config.spatial_merge_size  # type: ignore[attr-defined]

        def placeholders(video: int) -> list[int]:
            frames, height, width = out_mm_kwargs["video"][video]["video_grid_thw"].data.tolist()
            (token,) = next(each.target for each in updates if each.modality == "video")
            return [token] * settings.count(frames * (height // merge) * (width // merge))

        return [replace(each, replacement=placeholders) if each.modality == "video" else each for each in updates]

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        settings = settings_of(self.info.ctx.model_config)  # type: ignore[attr-defined]
        if settings is not None:
            inputs = _salted(inputs, settings.salt)
        return super().apply(inputs, *args, **kwargs)  # type: ignore[misc]


def _salted(inputs: Any, salt: str) -> Any:
    """The same inputs, with other hashes of videos."""
    salted = copy.copy(inputs)

    def get_mm_hashes(*args: Any, **kwargs: Any) -> Any:
        hashes = inputs.get_mm_hashes(*args, **kwargs)
        return {
            modality: [f"{each}-floc-{salt}" for each in mine] if modality == "video" else mine
            for modality, mine in hashes.items()
        }

    salted.get_mm_hashes = get_mm_hashes
    return salted


class ShortVideos:
    """Before a model of vLLM: of every video the tokens that are kept, at the positions they had."""

    supports_multimodal_pruning: ClassVar[bool] = True
    supported_video_pruning_methods: ClassVar[tuple[str, ...]] = ("evs",)  # whose name stands for floc

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.floc: Settings | None = settings_of(vllm_config.model_config)
        self.width = vllm_config.model_config.get_inputs_embeds_size()

    def _process_video_input(self, video_input: Any) -> tuple[torch.Tensor, ...]:
        embeds = super()._process_video_input(video_input)  # type: ignore[misc]
        if self.floc is None:
            return embeds
        merge = self.visual.spatial_merge_size  # type: ignore[attr-defined]
        grids = [(t, h // merge, w // merge) for t, h, w in video_input["video_grid_thw"].tolist()]
        paces = self._paces(video_input, len(grids))
        return tuple(self._shorten(*each) for each in zip(embeds, grids, paces, strict=True))

    def _shorten(self, embeds: torch.Tensor, grid: tuple[int, int, int], per_frame: float) -> torch.Tensor:
        assert self.floc is not None
        if self.floc.count(len(embeds)) == len(embeds):
            return embeds
        indices = kept_indices(embeds, grid, self.floc)
        return with_places(embeds[indices], grid_places(*grid, per_frame)[:, indices.cpu().numpy()])

    def _paces(self, video_input: Any, videos: int) -> list[float]:
        """How far a frame is from the next in time, for each video."""
        pace = getattr(self.config.vision_config, "tokens_per_second", 1.0)  # type: ignore[attr-defined]
        seconds = video_input.get("second_per_grid_ts")
        return [pace * 1.0] * videos if seconds is None else [pace * float(each) for each in seconds]

    def _postprocess_video_embeds_evs(self, video_embeds_split: Any, video_input: Any) -> Any:
        return video_embeds_split

    def _postprocess_image_embeds_evs(self, image_embeds_split: Any, image_input: Any) -> Any:
        return image_embeds_split

    def get_encoder_cudagraph_config(self) -> Any:
        config = super().get_encoder_cudagraph_config()  # type: ignore[misc]
        return config if self.floc is None else replace(config, modalities=[])  # they would go past the choice

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        if self.floc is None:
            return super().get_mrope_input_positions(input_tokens, mm_features)  # type: ignore[misc]
        positions, delta = of_prompt(len(input_tokens), self._media(mm_features))
        return torch.from_numpy(positions), delta

    def _media(self, mm_features: list[Any]) -> Iterator[Medium]:
        lengths = {each.mm_position.offset: each.mm_position.length for each in mm_features}
        for offset, *grid in self.iter_mm_grid_thw(mm_features):  # type: ignore[attr-defined]
            yield Medium(offset, lengths[offset], grid_places(*grid))

    def recompute_mrope_positions(
        self,
        input_ids: list[int] | torch.Tensor,
        multimodal_embeddings: Sequence[torch.Tensor],
        mrope_positions: torch.Tensor,
        num_computed_tokens: int,
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor, int]:
        ids = torch.as_tensor(input_ids, device=mrope_positions.device)
        config = self.config  # type: ignore[attr-defined]
        is_visual = (ids == config.image_token_id) | (ids == config.video_token_id)
        is_visual[:num_computed_tokens] = False
        return placed(mrope_positions, is_visual, multimodal_embeddings, self.width)


class Qwen2VLProcessor(ShortPrompts, qwen2_vl.Qwen2VLMultiModalProcessor):
    """Writes prompts for Qwen2-VL."""


class Qwen2_5_VLProcessor(ShortPrompts, qwen2_5_vl.Qwen2_5_VLMultiModalProcessor):
    """Writes prompts for Qwen2.5-VL."""


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2VLProcessor, info=qwen2_vl.Qwen2VLProcessingInfo, dummy_inputs=qwen2_vl.Qwen2VLDummyInputsBuilder
)
class Qwen2VL(ShortVideos, qwen2_vl.Qwen2VLForConditionalGeneration):
    """Qwen2-VL."""


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2_5_VLProcessor, info=qwen2_5_vl.Qwen2_5_VLProcessingInfo, dummy_inputs=qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder
)
class Qwen2_5_VL(ShortVideos, qwen2_5_vl.Qwen2_5_VLForConditionalGeneration):
    """Qwen2.5-VL."""
