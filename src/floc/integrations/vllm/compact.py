"""The hooks on models with plain positions, which are counted over the tokens that are kept (`positions="compact"`).

The model sees a shorter prompt, and vLLM needs to know nothing else. Importing this module needs vLLM.
"""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from vllm.model_executor.models import interns1, llava_onevision
from vllm.multimodal.processing import PromptUpdateDetails
from vllm.transformers_utils.processor import cached_processor_from_config

from floc.integrations.vllm.hooks import KEPT, Grid, ShortPromptMixin, register, select_in_ranks
from floc.integrations.vllm.plugin import get_settings
from floc.integrations.vllm.selection import warm_up
from floc.integrations.vllm.settings import Settings


class CompactVideoMixin:
    """Model mixin: keeps the selected tokens of every video."""

    supports_multimodal_pruning: ClassVar[bool] = True
    supported_video_pruning_methods: ClassVar[tuple[str, ...]] = ("evs",)  # the name under which vLLM runs floc

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        self.floc: Settings | None = get_settings(vllm_config.model_config)
        self.floc_config = vllm_config.model_config

    def warm_up_floc(self) -> None:
        """Compile everything that the first video would have to wait for."""
        if self.floc is not None:
            weight = next(self.parameters())  # type: ignore[attr-defined]
            width = self.floc_config.get_inputs_embeds_size()
            warm_up(self.floc, width, self.floc_config.dtype, weight.device)

    def embed_multimodal(self, **kwargs: Any) -> Any:
        counts = kwargs.pop(KEPT["video"], None)
        embeds = super().embed_multimodal(**kwargs)  # type: ignore[misc]
        if counts is None:  # of images, or of an engine without floc
            return embeds
        videos = [video.flatten(0, -2) for video in embeds]
        return tuple(self._shorten(*pair) for pair in zip(videos, counts.flatten().tolist(), strict=True))

    def _shorten(self, video: torch.Tensor, count: int) -> torch.Tensor:
        """Return the embeddings for a video's placeholders."""
        raise NotImplementedError


class LlavaOnevisionProcessor(ShortPromptMixin, llava_onevision.LlavaOnevisionMultiModalProcessor):
    """Processor of LLaVA-OneVision. A video ends with a line break, which is always kept."""

    def _list_sizes(self, hf_inputs: Any, kind: str) -> list[int]:
        cells = self.info._get_num_frame_tokens(image_width=1, image_height=1)  # of any frame
        return [cells * len(video) for video in hf_inputs.get("pixel_values_videos", ())] if kind == "video" else []

    def _write(self, kind: str, item: Any, kept: int) -> Any:
        return [self.info.get_hf_config().video_token_index] * (kept + 1)

    def _list_placeholders(self) -> list[int]:
        config = self.info.get_hf_config()
        return [config.image_token_index, config.video_token_index]


@register(
    LlavaOnevisionProcessor,
    info=llava_onevision.LlavaOnevisionProcessingInfo,
    dummy_inputs=llava_onevision.LlavaOnevisionDummyInputsBuilder,
)
class LlavaOnevision(CompactVideoMixin, llava_onevision.LlavaOnevisionForConditionalGeneration):
    """LLaVA-OneVision."""

    def _shorten(self, video: torch.Tensor, count: int) -> torch.Tensor:
        vision = self.config.vision_config
        side = math.ceil(vision.image_size // vision.patch_size / 2)
        grid: Grid = (len(video) // side**2, side, side)
        indices = select_in_ranks(video[:-1], grid, self.floc, count)  # type: ignore[arg-type]
        return torch.cat([video[indices], video[-1:]])


class InternVLProcessor(ShortPromptMixin, interns1.InternS1MultiModalProcessor):
    """Processor of InternVL. It puts all placeholders into the first frame: nothing is selected yet."""

    def _list_sizes(self, hf_inputs: Any, kind: str) -> list[int]:
        cells = self.info.get_hf_processor().image_seq_length
        return [cells * int(frames) for frames in hf_inputs.get("video_num_patches", ())] if kind == "video" else []

    def _write(self, kind: str, item: Any, kept: int) -> Any:
        processor, frames = self.info.get_hf_processor(), int(item["video_num_patches"].data)
        counts = [kept] + [0] * (frames - 1)
        return PromptUpdateDetails.from_seq(write_frames(processor, counts))

    def _list_placeholders(self) -> list[int]:
        processor = self.info.get_hf_processor()
        return processor.tokenizer.convert_tokens_to_ids([processor.image_token, processor.video_token])


@register(InternVLProcessor, info=interns1.InternS1ProcessingInfo, dummy_inputs=interns1.InternS1DummyInputsBuilder)
class InternVL(CompactVideoMixin, interns1.InternS1ForConditionalGeneration):
    """InternVL. It writes a label before every frame, and embeddings cover that text too."""

    def _shorten(self, video: torch.Tensor, count: int) -> torch.Tensor:
        processor = cached_processor_from_config(self.floc_config, interns1.InternVLProcessor)
        cells = processor.image_seq_length
        side, frames = math.isqrt(cells), len(video) // cells
        indices = select_in_ranks(video, (frames, side, side), self.floc, count)  # type: ignore[arg-type]
        counts = np.bincount(indices.cpu().numpy() // cells, minlength=frames).tolist()
        ids = torch.tensor(write_frames(processor, counts), device=video.device)
        is_text = ids != processor.tokenizer.convert_tokens_to_ids(processor.video_token)
        embeds = video.new_empty(len(ids), video.shape[1])
        embeds[~is_text] = video[indices]
        embeds[is_text] = self.get_language_model().embed_input_ids(ids[is_text]).to(embeds.dtype)
        return embeds


def write_frames(processor: Any, counts: list[int]) -> list[int]:
    """Return the token ids of a video that has `counts[t]` visual tokens in frame t, as InternVL writes them."""
    start, end = processor.start_image_token, processor.end_image_token
    frames = (f"Frame{number}: {start}{processor.video_token * count}{end}" for number, count in enumerate(counts, 1))
    return processor.tokenizer.encode("\n".join(frames), add_special_tokens=False)
