"""The classes that stand in for vLLM's; importing this needs vLLM."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.distributed import get_tp_group
from vllm.model_executor.models import qwen2_5_vl, qwen2_vl, qwen3_vl, qwen3_vl_moe
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import PromptUpdateDetails

from floc.integrations.vllm.choice import kept_indices, warm_up
from floc.integrations.vllm.plugin import settings_of
from floc.integrations.vllm.positions import (
    Medium,
    answer_offset,
    framed_places,
    grid_places,
    of_prompt,
    placed,
    require_marks_of_media,
    with_places,
)
from floc.integrations.vllm.settings import Settings

Grid = tuple[int, int, int]  # frames, rows and columns of tokens


class ShortPrompts:
    """Before a processor of vLLM: as many placeholders for a video as tokens are kept, and hashes of their own."""

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> list[Any]:
        updates = super()._get_prompt_updates(mm_items, hf_processor_mm_kwargs, out_mm_kwargs)  # type: ignore[misc]
        settings = self._settings()
        if settings is None:
            return updates
        merge = self.info.get_hf_config().vision_config.spatial_merge_size  # type: ignore[attr-defined]

        def placeholders(video: int) -> Any:
            item = out_mm_kwargs["video"][video]
            frames, height, width = item["video_grid_thw"].data.tolist()
            cells = (height // merge) * (width // merge)
            return self._placeholders(item, frames, cells, settings.count(frames * cells))

        return [replace(each, replacement=placeholders) if each.modality == "video" else each for each in updates]

    def _placeholders(self, item: Any, frames: int, cells: int, kept: int) -> Any:
        """What stands for a video in a prompt."""
        return [self.info.get_hf_config().video_token_id] * kept  # type: ignore[attr-defined]

    def _apply_hf_processor_main(self, *args: Any, **kwargs: Any) -> Any:
        if "enable_hf_prompt_update" in kwargs and self._settings() is not None:
            kwargs["enable_hf_prompt_update"] = False  # the processor would write a placeholder for every token
        return super()._apply_hf_processor_main(*args, **kwargs)  # type: ignore[misc]

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        settings = self._settings()
        if settings is None:
            return super().apply(inputs, *args, **kwargs)  # type: ignore[misc]
        made = super().apply(_salted(inputs, settings.salt), *args, **kwargs)  # type: ignore[misc]
        config = self.info.get_hf_config()  # type: ignore[attr-defined]
        spans = [(each.offset, each.length) for ranges in made["mm_placeholders"].values() for each in ranges]
        require_marks_of_media(made["prompt_token_ids"], (config.image_token_id, config.video_token_id), spans)
        return made

    def _settings(self) -> Settings | None:
        return settings_of(self.info.ctx.model_config)  # type: ignore[attr-defined]


def _salted(inputs: Any, salt: str) -> Any:
    """The same inputs, with other hashes: vLLM's own pruning changes what comes for pictures too."""
    salted = copy.copy(inputs)

    def get_mm_hashes(*args: Any, **kwargs: Any) -> Any:
        hashes = inputs.get_mm_hashes(*args, **kwargs)
        return {modality: [f"{each}-floc-{salt}" for each in mine] for modality, mine in hashes.items()}

    salted.get_mm_hashes = get_mm_hashes
    return salted


class ShortVideos:
    """Before a model of vLLM: of every video the tokens that are kept, at the positions they had."""

    supports_multimodal_pruning: ClassVar[bool] = True
    supported_video_pruning_methods: ClassVar[tuple[str, ...]] = ("evs",)  # whose name stands for floc

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.floc: Settings | None = settings_of(vllm_config.model_config)
        # channels of an embedding, and those of them that say how alike tokens are
        self.width = self.compared = vllm_config.model_config.get_inputs_embeds_size()

    def warm_floc_up(self) -> None:
        """Have done what takes long the first time."""
        if self.floc is not None:
            weight = next(self.parameters())  # type: ignore[attr-defined]
            warm_up(self.floc, self.compared, self.model_config.dtype, weight.device)  # type: ignore[attr-defined]

    def _process_video_input(self, video_input: Any) -> tuple[torch.Tensor, ...]:
        embeds = super()._process_video_input(video_input)  # type: ignore[misc]
        if self.floc is None:
            return embeds
        merge = self.visual.spatial_merge_size  # type: ignore[attr-defined]
        grids = [(t, h // merge, w // merge) for t, h, w in video_input["video_grid_thw"].tolist()]
        return tuple(
            self._shorten(each, grid, self._timing(video_input, video))
            for video, (each, grid) in enumerate(zip(embeds, grids, strict=True))
        )

    def _shorten(self, embeds: torch.Tensor, grid: Grid, timing: Any) -> torch.Tensor:
        """What is kept, with its places, also where all is: stores of embeddings want all videos to be of one width."""
        assert self.floc is not None
        ranks = get_tp_group()
        if ranks.rank_in_group == 0:
            indices = kept_indices(embeds[:, : self.compared], grid, self.floc)
        else:
            indices = torch.empty(self.floc.count(len(embeds)), dtype=torch.int64, device=embeds.device)
        return self._in_place(embeds, grid, timing, ranks.broadcast(indices))  # all ranks keep the same

    def _timing(self, video_input: Any, video: int) -> Any:
        """How far a frame of a video is from the next in time."""
        pace = getattr(self.config.vision_config, "tokens_per_second", 1.0)  # type: ignore[attr-defined]
        seconds = video_input.get("second_per_grid_ts")
        return pace * 1.0 if seconds is None else pace * float(seconds[video])

    def _in_place(self, embeds: torch.Tensor, grid: Grid, timing: Any, indices: torch.Tensor) -> torch.Tensor:
        """What comes for the placeholders of a video, of which some tokens are kept."""
        return with_places(embeds[indices], grid_places(*grid, timing)[:, indices.cpu().numpy()])

    def _postprocess_video_embeds_evs(self, video_embeds_split: Any, video_input: Any) -> Any:
        if self.floc is None:
            return super()._postprocess_video_embeds_evs(video_embeds_split, video_input)  # type: ignore[misc]
        return video_embeds_split

    def _postprocess_image_embeds_evs(self, image_embeds_split: Any, image_input: Any) -> Any:
        if self.floc is None:
            return super()._postprocess_image_embeds_evs(image_embeds_split, image_input)  # type: ignore[misc]
        return image_embeds_split

    def get_encoder_cudagraph_config(self) -> Any:
        config = super().get_encoder_cudagraph_config()  # type: ignore[misc]
        return config if self.floc is None else replace(config, modalities=[])  # they would go past the choice

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        if self.floc is None:
            return super().get_mrope_input_positions(input_tokens, mm_features)  # type: ignore[misc]
        positions, delta = of_prompt(len(input_tokens), self._media(input_tokens, mm_features))
        return torch.from_numpy(positions), delta

    def _media(self, input_tokens: list[int], mm_features: list[Any]) -> Iterator[Medium]:
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
        if not multimodal_embeddings:
            return multimodal_embeddings, mrope_positions, answer_offset(mrope_positions)
        ids = torch.as_tensor(input_ids, device=mrope_positions.device)
        config = self.config  # type: ignore[attr-defined]
        is_visual = (ids == config.image_token_id) | (ids == config.video_token_id)
        return placed(mrope_positions, is_visual, num_computed_tokens, multimodal_embeddings, self.width)


class StampedVideos(ShortVideos):
    """Before a model that writes the time before every frame: embeddings come for the text of a video too."""

    language: ClassVar[str]  # the architecture of its language model

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        text = vllm_config.model_config.hf_config.text_config
        if not text.architectures:
            text.architectures = [self.language]  # vLLM 0.28 does not start on CPUs without
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.compared = self.visual_dim  # type: ignore[attr-defined]
        self.width = self.visual_dim + self.multiscale_dim  # type: ignore[attr-defined]

    def _timing(self, video_input: Any, video: int) -> Any:
        """When each frame of a video is shown."""
        return video_input["timestamps"][video]

    def _in_place(self, embeds: torch.Tensor, grid: Grid, timing: Any, indices: torch.Tensor) -> torch.Tensor:
        frames, rows, columns = grid
        cells, kept = rows * columns, indices.cpu().numpy()
        counts = np.bincount(kept // cells, minlength=frames).tolist()
        written = torch.tensor(written_video(self.config, self._tokenizer, counts, timing), device=embeds.device)  # type: ignore[attr-defined]
        is_text = written != self.config.video_token_id  # type: ignore[attr-defined]
        coming = embeds.new_zeros(len(written), self.width)
        coming[~is_text] = embeds[indices]
        coming[is_text, : self.compared] = self.get_language_model().embed_input_ids(written[is_text])  # type: ignore[attr-defined]
        leads = self._leads(written.tolist())
        return with_places(coming, framed_places(leads, rows, columns)[:, _staying(leads, cells, kept)], leads[0])

    def _leads(self, written: list[int]) -> list[int]:
        """How many tokens of text come before the tokens of each frame, the mark that opens it included."""
        opening, closing = (
            np.flatnonzero(np.array(written) == mark)
            for mark in (self.config.vision_start_token_id, self.config.vision_end_token_id)  # type: ignore[attr-defined]
        )
        return (opening - np.append(-1, closing[:-1])).tolist()

    def _media(self, input_tokens: list[int], mm_features: list[Any]) -> Iterator[Medium]:
        merge = self.config.vision_config.spatial_merge_size  # type: ignore[attr-defined]
        for feature in sorted(mm_features, key=lambda each: each.mm_position.offset):
            offset, length = feature.mm_position.offset, feature.mm_position.length
            _, height, width = feature.data[f"{feature.modality}_grid_thw"].data.tolist()
            rows, columns = height // merge, width // merge
            if feature.modality == "image":
                yield Medium(offset, length, grid_places(1, rows, columns, 1.0))
            else:
                leads = self._leads(input_tokens[offset : offset + length])
                yield Medium(offset, length, framed_places(leads, rows, columns))


def _staying(leads: list[int], cells: int, kept: np.ndarray) -> np.ndarray:
    """[L] bool, what is left of a video's text and tokens: all text, and the tokens that are kept."""
    is_token = np.concatenate([np.repeat([False, True, False], [lead, cells, 1]) for lead in leads])
    stays = ~is_token
    stays[np.flatnonzero(is_token)[kept]] = True
    return stays


class Remembering:
    """A tokenizer that is asked the same again and again: how a time is written."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See the tokenizer."""
        assert not add_special_tokens
        return _encoded(self.tokenizer, text)


@functools.lru_cache(maxsize=1 << 14)
def _encoded(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def written_video(config: Any, tokenizer: Any, counts: list[int], times: Any) -> list[int]:
    """How a video with so many tokens in each frame is written."""
    written = qwen3_vl.Qwen3VLMultiModalProcessor.get_video_repl(
        tokens_per_frame=counts,
        timestamps=times,
        tokenizer=Remembering(tokenizer),
        vision_start_token_id=config.vision_start_token_id,
        vision_end_token_id=config.vision_end_token_id,
        video_token_id=config.video_token_id,
    )
    return written.full


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


class Qwen3VLProcessor(ShortPrompts, qwen3_vl.Qwen3VLMultiModalProcessor):
    """Writes prompts for Qwen3-VL.

    Which frames keep tokens is not known yet: all that will be kept are written into the first one.
    """

    def _placeholders(self, item: Any, frames: int, cells: int, kept: int) -> Any:
        config, times = self.info.get_hf_config(), item["timestamps"].data
        counts = [cells] * frames if kept == frames * cells else [kept] + [0] * (frames - 1)
        return PromptUpdateDetails.from_seq(written_video(config, self.info.get_tokenizer(), counts, times))


def _some(*args: Any, **kwargs: Any) -> int:
    return 1


# what it counts goes into a text that is not used
qwen3_vl.compute_retained_tokens_count = _some


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLProcessor, info=qwen3_vl.Qwen3VLProcessingInfo, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder
)
class Qwen3VL(StampedVideos, qwen3_vl.Qwen3VLForConditionalGeneration):
    """Qwen3-VL."""

    language: ClassVar[str] = "Qwen3ForCausalLM"


@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLProcessor, info=qwen3_vl_moe.Qwen3VLMoeProcessingInfo, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder
)
class Qwen3VLMoe(StampedVideos, qwen3_vl_moe.Qwen3VLMoeForConditionalGeneration):
    """Qwen3-VL with experts."""

    language: ClassVar[str] = "Qwen3MoeForCausalLM"
