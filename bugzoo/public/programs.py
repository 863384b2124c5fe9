"""All programs by name; the family is the name to the first hyphen."""

from __future__ import annotations

from bugzoo.public import encoders, generative, language, plain, preference
from bugzoo.public.run import Run

PROGRAMS: dict[str, type[Run]] = {
    "llama": language.Llama,
    "llama-accumulated": language.LlamaAccumulated,
    "llama-bf16": language.LlamaBf16,
    "llama-pure-bf16": language.LlamaPureBf16,
    "llama-ddp": language.LlamaDdp,
    "llama-fsdp": language.LlamaFsdp,
    "qwen3-packed": language.Qwen3Packed,
    "gemma2": language.Gemma2,
    "gemma2-bf16": language.Gemma2Bf16,
    "mistral": language.Mistral,
    "mixtral": language.Mixtral,
    "mixtral-bf16": language.MixtralBf16,
    "gpt2": language.Gpt2,
    "gpt2-fp16": language.Gpt2Fp16,
    "mamba": language.Mamba,
    "bert": encoders.Bert,
    "bert-bf16": encoders.BertBf16,
    "vit": encoders.Vit,
    "vit-bf16": encoders.VitBf16,
    "t5": encoders.T5,
    "whisper": encoders.Whisper,
    "nano": plain.Nano,
    "nano-bf16": plain.NanoBf16,
    "nano-fp16": plain.NanoFp16,
    "nano-master": plain.NanoMaster,
    "nano-ddp": plain.NanoDdp,
    "nano-fsdp": plain.NanoFsdp,
    "cnn": plain.Cnn,
    "cnn-ddp": plain.CnnDdp,
    "gnn": plain.Gnn,
    "multitask": plain.Multitask,
    "unet": generative.Unet,
    "unet-bf16": generative.UnetBf16,
    "vae": generative.Vae,
    "lora": preference.Lora,
    "lora-bf16": preference.LoraBf16,
    "dpo": preference.Dpo,
    "grpo": preference.Grpo,
    "clip": preference.Clip,
    "clip-ddp": preference.ClipDdp,
}
