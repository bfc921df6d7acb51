"""Answer from stored videos: their tokens take the place of pixels. Importing this module needs vLLM.

A stored video is a video item of vLLM, with tokens and their indices as fields instead of pixels. The process that
writes prompts reads and checks the file, so that a bad one fails its request alone; workers open no file.
"""

import copy
import functools
from functools import cached_property
from typing import Any

import torch
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItem, MultiModalKwargsItems
from vllm.multimodal.media.connector import MediaConnector
from vllm.multimodal.parse import MultiModalDataItems, MultiModalDataParser, VideoProcessorItems

from floc._checks import require
from floc.captured.captured import Captured
from floc.captured.identity import Identity
from floc.families.preparation import Preparation
from floc.families.processing import VideoPlan, VideoPreparer
from floc.integrations.vllm.checkpoint import identify_model
from floc.integrations.vllm.positions import BASE, DIGITS
from floc.integrations.vllm.stored import KEY, Address, StoredVideo, StoredVideos, is_stored, name_stored_video

FEATURES, INDICES = "floc_features", "floc_indices"  # fields of an item: [K, D] and [K]
MOST_TOKENS = 1 << 23  # of a video before compression; workers compute the position of each
TIMESTAMP = 32  # more tokens than the text before a frame has


def count_stored(item: Any) -> int | None:
    """Return how many tokens a stored video has, or None for another item."""
    return len(item[INDICES].data) if INDICES in item else None


def get_stored(item: Any) -> Any:
    """Return the address or the stored video in an item of vLLM's parser, or None for another video."""
    content = item[0] if isinstance(item, tuple) else item
    return content if isinstance(content, Address | StoredVideo) else None


class StoredPromptMixin:
    """Processor mixin: finds and loads the stored videos of a prompt."""

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        uuids = {kind: [*(values or ())] for kind, values in (inputs.mm_uuid_items or {}).items()}
        if any(str(uuid).startswith(KEY) for values in uuids.values() for uuid in values):
            raise ValueError(f"a uuid must not start with {KEY!r}, which names stored videos; choose another")
        videos = inputs.mm_data_items.get("video")
        addresses = [get_stored(item) for item in _list_videos(videos)]
        if any(addresses):
            found = [address and self._find(address) for address in addresses]
            inputs, videos = copy.copy(inputs), copy.copy(videos)
            videos.data = [(new, {}) if new else old for new, old in zip(found, videos.data, strict=True)]
            inputs.mm_data_items = MultiModalDataItems({**inputs.mm_data_items, "video": videos})
            given = uuids.get("video") or [None] * len(found)
            keys = [new.key if new else uuid for new, uuid in zip(found, given, strict=True)]
            inputs.mm_uuid_items = {**(inputs.mm_uuid_items or {}), "video": keys}
            inputs.get_mm_hashes = functools.partial(_hash_with_keys, inputs.get_mm_hashes, found)
        return super().apply(inputs, *args, **kwargs)  # type: ignore[misc]

    def _apply_hf_processor_main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = {name: _leave_out_stored(value) for name, value in kwargs.items()}
        return super()._apply_hf_processor_main(*map(_leave_out_stored, args), **kwargs)  # type: ignore[misc]

    def _get_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Any:
        stored = [get_stored(item) for item in _list_videos(mm_items.get("video"))]
        if any(stored):  # vLLM reads the items from the same object afterwards
            others = iter(out_mm_kwargs.get("video", ()))
            out_mm_kwargs["video"] = [self._load(video) if video else next(others) for video in stored]
        return super()._get_prompt_updates(mm_items, hf_processor_mm_kwargs, out_mm_kwargs)  # type: ignore[misc]

    def _find(self, address: Address) -> StoredVideo:
        if self._stored_videos is None:
            fix = """start it with --additional-config '{"floc": {"stored": ["FOLDER"]}}'"""
            raise ValueError(f"{address}: this server has no folder of stored videos; {fix}")
        return self._stored_videos.find(address)

    @cached_property
    def _stored_videos(self) -> StoredVideos | None:
        settings = self._floc_settings  # type: ignore[attr-defined]
        if settings is None or not settings.stored:
            return None
        return StoredVideos(settings.stored, self._check, str(self.info.model_id))  # type: ignore[attr-defined]

    @cached_property
    def _identity(self) -> Identity:
        return identify_model(self.info.ctx.model_config)  # type: ignore[attr-defined]

    @cached_property
    def _preparer(self) -> VideoPreparer:
        return VideoPreparer(self.info.get_hf_processor())  # type: ignore[attr-defined]

    def _load(self, video: StoredVideo) -> MultiModalKwargsItem:
        """Load a stored video as an item of vLLM: what the processor returns, with tokens in place of pixels."""
        captured, model_config = video.load(), self.info.ctx.model_config  # type: ignore[attr-defined]
        slices, rows, columns = captured.shape
        merge = model_config.hf_config.vision_config.spatial_merge_size
        features = torch.cat([captured.features, *captured.deep], 1) if captured.deep else captured.features
        data = {
            FEATURES: [features.to(model_config.dtype)],
            INDICES: [captured.indices],
            "video_grid_thw": torch.tensor([[slices, rows * merge, columns * merge]]),
            **self._describe_times(Preparation.from_dict(captured.made["preparation"])),
        }
        fields = {name: MultiModalFieldConfig.batched("video", keep_on_cpu=name != FEATURES) for name in data}
        return MultiModalKwargsItems.from_hf_inputs(data, fields)["video"][0]

    def _describe_times(self, record: Preparation) -> dict[str, Any]:
        """Return what the processor returns about the times of a video's frames."""
        metadata = VideoPlan(record.facts, record.indices, None, {}, ("", ()), taken=record.taken).describe()
        if hasattr(self.info, "_get_video_second_idx"):  # type: ignore[attr-defined]
            return {"timestamps": [self.info._get_video_second_idx(metadata, do_sample_frames=False)]}  # type: ignore[attr-defined]
        if hasattr(self.info.get_hf_config().vision_config, "tokens_per_second"):  # type: ignore[attr-defined]
            return {"second_per_grid_ts": torch.tensor([self._preparer.frames_per_slice / metadata.sampled_fps])}
        return {}

    def _check(self, video: Captured) -> None:
        """Raise ValueError unless a video was captured for this model, and workers can take it."""
        video.model.require(self._identity)
        record = video.made.get("preparation")
        if record is None:
            raise ValueError("how this video was prepared is unknown; capture it again, from its file")
        preparation = Preparation.from_dict(record)
        self._preparer.require_same(preparation)
        config = self.info.get_hf_config()  # type: ignore[attr-defined]
        deep = len(getattr(config.vision_config, "deepstack_visual_indexes", ()))
        found = video.features.shape[1], len(video.deep), video.frames_per_slice
        expected = self._identity.hidden_size, deep, self._preparer.frames_per_slice
        names = "values of a token, deep layers and frames of a slice"
        require(found == expected, f"it has {found} {names}, the model takes {expected}; capture it again")
        require(video.n <= MOST_TOKENS, f"it had {video.n} tokens, a server takes {MOST_TOKENS}; take fewer frames")
        seconds = self._describe_times(preparation).get("second_per_grid_ts")
        slices, *sides = video.shape
        step = max(sides) + TIMESTAMP if seconds is None else float(seconds) * config.vision_config.tokens_per_second
        last = slices * step + max(sides)
        # vLLM computes the rotary embedding of four times as many positions
        most = min(4 * config.get_text_config().max_position_embeddings, BASE**DIGITS) // 2
        require(last <= most, f"its last frame is at position {last:.0f}, the model takes {most}; take fewer frames")


def _list_videos(videos: Any) -> list[Any]:
    """Return the videos of a prompt as they were parsed; none if they are embeddings."""
    return videos.data if isinstance(videos, VideoProcessorItems) else []


def _hash_with_keys(get_mm_hashes: Any, found: list[StoredVideo | None], *args: Any, **kwargs: Any) -> Any:
    """Return vLLM's hashes, for stored videos their keys, whatever the options of the request."""
    hashes = get_mm_hashes(*args, **kwargs)
    keys = [video.key if video else value for video, value in zip(found, hashes["video"], strict=True)]
    return {**hashes, "video": keys}


def _leave_out_stored(items: Any) -> Any:
    """Return the items of a prompt without stored videos; any other value as it is."""
    if not isinstance(items, MultiModalDataItems) or not any(map(get_stored, _list_videos(items.get("video")))):
        return items
    videos, left = copy.copy(items["video"]), {kind: value for kind, value in items.items() if kind != "video"}
    is_other = [get_stored(item) is None for item in videos.data]
    for name in ("data", "metadata"):
        if isinstance(values := getattr(videos, name, None), list):
            setattr(videos, name, [value for value, keep in zip(values, is_other, strict=True) if keep])
    return MultiModalDataItems({**left, "video": videos} if any(is_other) else left)


class StoredTokensMixin:
    """Model mixin: takes the tokens of stored videos as they are."""

    def embed_multimodal(self, **kwargs: Any) -> Any:
        if FEATURES not in kwargs:
            return super().embed_multimodal(**kwargs)  # type: ignore[misc]
        merge, dtype = self.visual.spatial_merge_size, self.visual.dtype  # type: ignore[attr-defined]
        embeds = []
        for i, (features, indices) in enumerate(zip(kwargs[FEATURES], kwargs[INDICES], strict=True)):
            frames, height, width = kwargs["video_grid_thw"][i].tolist()
            grid, timing = (frames, height // merge, width // merge), self._get_timing(kwargs, i)  # type: ignore[attr-defined]
            embeds.append(self._add_positions(features.to(dtype), grid, timing, indices))  # type: ignore[attr-defined]
        return tuple(embeds)


_fetch_video, _fetch_video_async = MediaConnector.fetch_video, MediaConnector.fetch_video_async
_get_video_with_metadata = MultiModalDataParser._get_video_with_metadata


def _fetch(connector: Any, video_url: str, **kwargs: Any) -> Any:
    return name_stored_video(video_url) if is_stored(video_url) else _fetch_video(connector, video_url, **kwargs)


async def _fetch_async(connector: Any, video_url: str, **kwargs: Any) -> Any:
    if is_stored(video_url):
        return name_stored_video(video_url)
    return await _fetch_video_async(connector, video_url, **kwargs)


def _parse_video(parser: Any, video: Any) -> Any:
    return _get_video_with_metadata(parser, video) if get_stored(video) is None else (get_stored(video), {})


# vLLM reads a URL here, in chats of `LLM` and of the server
MediaConnector.fetch_video, MediaConnector.fetch_video_async = _fetch, _fetch_async
MultiModalDataParser._get_video_with_metadata = _parse_video
