"""The hooks on vLLM: classes that replace its models and processors. Importing this module needs vLLM."""

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.distributed import get_tp_group
from vllm.model_executor.models import qwen2_5_vl, qwen2_vl, qwen3_5, qwen3_vl, qwen3_vl_moe
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.processing import PromptUpdateDetails

from floc.integrations.vllm import positions as mrope
from floc.integrations.vllm.plugin import NAME, get_settings
from floc.integrations.vllm.selection import select_indices, warm_up
from floc.integrations.vllm.settings import Settings
from floc.integrations.vllm.stored_hooks import StoredPromptMixin, StoredTokensMixin, count_stored

Grid = tuple[int, int, int]  # frames, rows and columns of tokens
MEDIA = ("image", "video")
KEPT = {kind: f"floc_{kind}_kept" for kind in MEDIA}  # input of the model: how many tokens to keep of each
register = MULTIMODAL_REGISTRY.register_processor


class ShortPromptMixin:
    """Processor mixin: writes one placeholder per kept token, and salts the hashes of the media.

    The settings of a request travel as the processor argument "floc". The number of tokens to keep of each video and
    picture travels to the model as a field of its inputs.
    """

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        settings = self._floc_settings
        given = dict(inputs.hf_processor_mm_kwargs)
        asked = given.pop(NAME, None)
        if settings is None:
            if asked is not None:
                remedy = "set --video-pruning-rate or a floc ratio (which may be 1) when the engine starts"
                raise ValueError(f"this engine keeps all tokens, but the request has floc settings: {remedy}")
            return super().apply(inputs, *args, **kwargs)  # type: ignore[misc]
        settings = settings.for_request(asked)
        plain, salted = copy.copy(inputs), copy.copy(inputs)
        plain.hf_processor_mm_kwargs = given
        salted.hf_processor_mm_kwargs = {**given, NAME: settings}

        def get_mm_hashes(*args: Any, **kwargs: Any) -> Any:
            hashes = plain.get_mm_hashes(*args, **kwargs)
            return {
                kind: [f"{value}-floc-{settings.get_salt(kind)}" for value in values] for kind, values in hashes.items()
            }

        salted.get_mm_hashes = get_mm_hashes
        processed = super().apply(salted, *args, **kwargs)  # type: ignore[misc]
        spans = [(span.offset, span.length) for ranges in processed["mm_placeholders"].values() for span in ranges]
        mrope.check_placeholders(processed["prompt_token_ids"], self._list_placeholders(), spans)
        return processed

    def _apply_hf_processor_main(self, *args: Any, **kwargs: Any) -> Any:
        for name in ("hf_kwargs", "hf_processor_mm_kwargs"):  # releases name it differently
            if name in kwargs:
                _, kwargs[name] = _split_settings(kwargs[name])
        return super()._apply_hf_processor_main(*args, **kwargs)  # type: ignore[misc]

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Any) -> Any:
        settings, given = _split_settings(hf_processor_mm_kwargs)
        fields = dict(super()._get_mm_fields_config(hf_inputs, given))  # type: ignore[misc]
        if settings is None:
            return fields
        for kind in MEDIA:
            if sizes := self._list_sizes(hf_inputs, kind):
                hf_inputs[KEPT[kind]] = torch.tensor([settings.count(size, kind) for size in sizes])
                fields[KEPT[kind]] = MultiModalFieldConfig.batched(kind, keep_on_cpu=True)
        return fields

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> list[Any]:
        settings, given = _split_settings(hf_processor_mm_kwargs)
        updates = super()._get_prompt_updates(mm_items, given, out_mm_kwargs)  # type: ignore[misc]
        if settings is None:
            return updates

        def write(kind: str, write_whole: Any, number: int) -> Any:
            item = out_mm_kwargs[kind][number]
            kept = int(item[KEPT[kind]].data) if KEPT[kind] in item else count_stored(item)
            return write_whole(number) if kept is None else self._write(kind, item, kept)

        return [
            replace(update, replacement=functools.partial(write, update.modality, update.replacement))
            for update in updates
        ]

    @functools.cached_property
    def _floc_settings(self) -> Settings | None:
        return get_settings(self.info.ctx.model_config)  # type: ignore[attr-defined]

    def _list_sizes(self, hf_inputs: Any, kind: str) -> list[int]:
        """Return the number of tokens of each video or image."""
        merge = self.info.get_hf_config().vision_config.spatial_merge_size  # type: ignore[attr-defined]
        grids = hf_inputs.get(f"{kind}_grid_thw")
        return [] if grids is None else (torch.as_tensor(grids).prod(-1) // merge**2).tolist()

    def _write(self, kind: str, item: Any, kept: int) -> Any:
        """Return the placeholders of a video or an image of which `kept` tokens are kept."""
        return [getattr(self.info.get_hf_config(), f"{kind}_token_id")] * kept  # type: ignore[attr-defined]

    def _list_placeholders(self) -> list[int]:
        """Return the token ids that only vLLM may write."""
        config = self.info.get_hf_config()  # type: ignore[attr-defined]
        return [config.image_token_id, config.video_token_id]


def _split_settings(given: Any) -> tuple[Settings | None, dict[str, Any]]:
    """Take the settings of a request out of the arguments of its processor."""
    return given.get(NAME), {name: value for name, value in given.items() if name != NAME}


def select_in_ranks(embeds: torch.Tensor, grid: Grid, settings: Settings, count: int) -> torch.Tensor:
    """Select tokens in the first rank of tensor parallelism, so that all ranks keep the same."""
    ranks = get_tp_group()
    if ranks.rank_in_group == 0:
        indices = select_indices(embeds, grid, settings, count)
    else:
        indices = torch.empty(count, dtype=torch.int64, device=embeds.device)
    return ranks.broadcast(indices)


class ShortVideoMixin(StoredTokensMixin):
    """Model mixin: keeps the selected tokens of every video, at their original positions."""

    supports_multimodal_pruning: ClassVar[bool] = True
    supported_video_pruning_methods: ClassVar[tuple[str, ...]] = ("evs",)  # the name under which vLLM runs floc

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.floc: Settings | None = get_settings(vllm_config.model_config)
        # channels of an embedding, and how many of them the selection compares
        self.embed_width = self.compared_width = vllm_config.model_config.get_inputs_embeds_size()

    def warm_up_floc(self) -> None:
        """Compile everything that the first video would have to wait for."""
        if self.floc is not None:
            weight = next(self.parameters())  # type: ignore[attr-defined]
            warm_up(self.floc, self.compared_width, self.model_config.dtype, weight.device)  # type: ignore[attr-defined]

    def embed_multimodal(self, **kwargs: Any) -> Any:
        self.kept_counts = {kind: kwargs.pop(KEPT[kind], None) for kind in MEDIA}
        return super().embed_multimodal(**kwargs)

    def _process_video_input(self, video_input: Any) -> tuple[torch.Tensor, ...]:
        embeds = super()._process_video_input(video_input)  # type: ignore[misc]
        if self.floc is None:
            return embeds
        merge, shortened = self.visual.spatial_merge_size, []  # type: ignore[attr-defined]
        grids = [(t, h // merge, w // merge) for t, h, w in video_input["video_grid_thw"].tolist()]
        counts = self.kept_counts["video"].flatten().tolist()
        for i, (video, grid, count) in enumerate(zip(embeds, grids, counts, strict=True)):
            indices = select_in_ranks(video[:, : self.compared_width], grid, self.floc, count)
            # with positions even if all are kept: embedding stores need a uniform width
            shortened.append(self._add_positions(video[indices], grid, self._get_timing(video_input, i), indices))
        return tuple(shortened)

    def _process_image_input(self, image_input: Any) -> tuple[torch.Tensor, ...]:
        embeds = super()._process_image_input(image_input)  # type: ignore[misc]
        if self.floc is None:
            return embeds
        merge, shortened = self.visual.spatial_merge_size, []  # type: ignore[attr-defined]
        grids = [(t, h // merge, w // merge) for t, h, w in image_input["image_grid_thw"].tolist()]
        counts = self.kept_counts["image"].flatten().tolist()
        for image, grid, count in zip(embeds, grids, counts, strict=True):
            indices = select_in_ranks(image[:, : self.compared_width], grid, self.floc, count)
            positions = mrope.compute_grid_positions(*grid, 1.0)[:, indices.cpu().numpy()]
            shortened.append(mrope.append_positions(image[indices], positions))
        return tuple(shortened)

    def _get_timing(self, video_input: Any, video: int) -> Any:
        """Return how many positions two frames of a video are apart."""
        pace = getattr(self.config.vision_config, "tokens_per_second", 1.0)  # type: ignore[attr-defined]
        seconds = video_input.get("second_per_grid_ts")
        return pace * (1.0 if seconds is None else float(seconds[video]))

    def _add_positions(self, embeds: torch.Tensor, grid: Grid, timing: Any, indices: torch.Tensor) -> torch.Tensor:
        """Return the embeddings for a video's placeholders, positions appended, from those of the kept tokens."""
        positions = mrope.compute_grid_positions(*grid, timing)[:, indices.cpu().numpy()]
        return mrope.append_positions(embeds, positions)

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
        return config if self.floc is None else replace(config, modalities=[])  # graphs would skip the selection

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        if self.floc is None:
            return super().get_mrope_input_positions(input_tokens, mm_features)  # type: ignore[misc]
        media = self._iter_media(input_tokens, mm_features)
        positions, delta = mrope.compute_prompt_positions(len(input_tokens), media)
        return torch.from_numpy(positions), delta

    def _iter_media(self, input_tokens: list[int], mm_features: list[Any]) -> Iterator[mrope.MediaItem]:
        lengths = {feature.mm_position.offset: feature.mm_position.length for feature in mm_features}
        for offset, *grid in self.iter_mm_grid_thw(mm_features):  # type: ignore[attr-defined]
            yield mrope.MediaItem(offset, lengths[offset], mrope.compute_grid_positions(*grid))

    def recompute_mrope_positions(
        self,
        input_ids: list[int] | torch.Tensor,
        multimodal_embeddings: Sequence[torch.Tensor],
        mrope_positions: torch.Tensor,
        num_computed_tokens: int,
    ) -> tuple[Sequence[torch.Tensor], torch.Tensor, int]:
        if not multimodal_embeddings:
            return multimodal_embeddings, mrope_positions, mrope.compute_delta(mrope_positions)
        ids = torch.as_tensor(input_ids, device=mrope_positions.device)
        config = self.config  # type: ignore[attr-defined]
        is_visual = (ids == config.image_token_id) | (ids == config.video_token_id)
        embeds, width = multimodal_embeddings, self.embed_width
        return mrope.fill_positions(mrope_positions, is_visual, num_computed_tokens, embeds, width)


class TimestampedVideoMixin(ShortVideoMixin):
    """Model mixin for models that write a timestamp before every frame: embeddings cover that text too."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.compared_width = self.visual_dim  # type: ignore[attr-defined]
        self.embed_width = self.visual_dim + self.multiscale_dim  # type: ignore[attr-defined]

    def _get_timing(self, video_input: Any, video: int) -> Any:
        """Return the timestamps of a video's frames."""
        return video_input["timestamps"][video]

    def _add_positions(self, embeds: torch.Tensor, grid: Grid, timing: Any, indices: torch.Tensor) -> torch.Tensor:
        frames, rows, columns = grid
        cells, kept = rows * columns, indices.cpu().numpy()
        counts = np.bincount(kept // cells, minlength=frames).tolist()
        ids = torch.tensor(write_video(self.config, self._tokenizer, counts, timing), device=embeds.device)  # type: ignore[attr-defined]
        is_text = ids != self.config.video_token_id  # type: ignore[attr-defined]
        span_embeds = embeds.new_zeros(len(ids), self.embed_width)
        span_embeds[~is_text] = embeds
        span_embeds[is_text, : self.compared_width] = self.get_language_model().embed_input_ids(ids[is_text])  # type: ignore[attr-defined]
        leads = self._count_leads(ids.tolist())
        is_visual = np.concatenate([np.repeat([False, True, False], [lead, cells, 1]) for lead in leads])
        remains = ~is_visual  # all text, and the kept visual tokens
        remains[np.flatnonzero(is_visual)[kept]] = True
        positions = mrope.compute_framed_positions(leads, rows, columns)[:, remains]
        return mrope.append_positions(span_embeds, positions, leads[0])

    def _count_leads(self, ids: list[int]) -> list[int]:
        """Count the text tokens before the visual tokens of each frame, the vision start token included."""
        starts, ends = (
            np.flatnonzero(np.array(ids) == token)
            for token in (self.config.vision_start_token_id, self.config.vision_end_token_id)  # type: ignore[attr-defined]
        )
        return (starts - np.append(-1, ends[:-1])).tolist()

    def _iter_media(self, input_tokens: list[int], mm_features: list[Any]) -> Iterator[mrope.MediaItem]:
        merge = self.config.vision_config.spatial_merge_size  # type: ignore[attr-defined]
        for feature in sorted(mm_features, key=lambda feature: feature.mm_position.offset):
            offset, length = feature.mm_position.offset, feature.mm_position.length
            _, height, width = feature.data[f"{feature.modality}_grid_thw"].data.tolist()
            rows, columns = height // merge, width // merge
            if feature.modality == "image":
                grid = mrope.compute_grid_positions(1, rows, columns, 1.0)
            else:
                leads = self._count_leads(input_tokens[offset : offset + length])
                grid = mrope.compute_framed_positions(leads, rows, columns)
            yield mrope.MediaItem(offset, length, grid)


@functools.lru_cache(maxsize=1 << 14)
def _encode_text(tokenizer: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def write_video(config: Any, tokenizer: Any, counts: list[int], timestamps: Any) -> list[int]:
    """Return the token ids of a video that has `counts[t]` visual tokens in frame t."""
    details = qwen3_vl.Qwen3VLMultiModalProcessor.get_video_repl(
        tokens_per_frame=counts,
        timestamps=timestamps,
        # the same timestamps come again in every video, so their encodings are cached
        tokenizer=SimpleNamespace(encode=functools.partial(_encode_text, tokenizer)),
        vision_start_token_id=config.vision_start_token_id,
        vision_end_token_id=config.vision_end_token_id,
        video_token_id=config.video_token_id,
    )
    return details.full


class Qwen2VLProcessor(StoredPromptMixin, ShortPromptMixin, qwen2_vl.Qwen2VLMultiModalProcessor):
    """Processor of Qwen2-VL."""


class Qwen2_5_VLProcessor(StoredPromptMixin, ShortPromptMixin, qwen2_5_vl.Qwen2_5_VLMultiModalProcessor):
    """Processor of Qwen2.5-VL."""


@register(Qwen2VLProcessor, info=qwen2_vl.Qwen2VLProcessingInfo, dummy_inputs=qwen2_vl.Qwen2VLDummyInputsBuilder)
class Qwen2VL(ShortVideoMixin, qwen2_vl.Qwen2VLForConditionalGeneration):
    """Qwen2-VL."""


@register(
    Qwen2_5_VLProcessor, info=qwen2_5_vl.Qwen2_5_VLProcessingInfo, dummy_inputs=qwen2_5_vl.Qwen2_5_VLDummyInputsBuilder
)
class Qwen2_5_VL(ShortVideoMixin, qwen2_5_vl.Qwen2_5_VLForConditionalGeneration):
    """Qwen2.5-VL."""


class Qwen3VLProcessor(StoredPromptMixin, ShortPromptMixin, qwen3_vl.Qwen3VLMultiModalProcessor):
    """Processor of Qwen3-VL. It puts all placeholders into the first frame: nothing is selected yet."""

    def _write(self, kind: str, item: Any, kept: int) -> Any:
        if kind == "image":
            return super()._write(kind, item, kept)
        config = self.info.get_hf_config()
        frames, height, width = item["video_grid_thw"].data.tolist()
        cells = height * width // config.vision_config.spatial_merge_size**2
        counts = [cells] * frames if kept == frames * cells else [kept] + [0] * (frames - 1)
        timestamps = item["timestamps"].data
        return PromptUpdateDetails.from_seq(write_video(config, self.info.get_tokenizer(), counts, timestamps))


# vLLM writes this count into a text that is not used; the original is refused (see `plugin.activate`)
qwen3_vl.compute_retained_tokens_count = lambda *args, **kwargs: 1


@register(Qwen3VLProcessor, info=qwen3_vl.Qwen3VLProcessingInfo, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder)
class Qwen3VL(TimestampedVideoMixin, qwen3_vl.Qwen3VLForConditionalGeneration):
    """Qwen3-VL."""


@register(Qwen3VLProcessor, info=qwen3_vl_moe.Qwen3VLMoeProcessingInfo, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder)
class Qwen3VLMoe(TimestampedVideoMixin, qwen3_vl_moe.Qwen3VLMoeForConditionalGeneration):
    """Qwen3-VL with experts."""


@register(Qwen3VLProcessor, info=qwen3_5.Qwen3_5ProcessingInfo, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder)
class Qwen3_5(TimestampedVideoMixin, qwen3_5.Qwen3_5ForConditionalGeneration):
    """Qwen3.5."""


@register(Qwen3VLProcessor, info=qwen3_5.Qwen3_5MoeProcessingInfo, dummy_inputs=qwen3_vl.Qwen3VLDummyInputsBuilder)
class Qwen3_5Moe(TimestampedVideoMixin, qwen3_5.Qwen3_5MoeForConditionalGeneration):
    """Qwen3.5 with experts."""
