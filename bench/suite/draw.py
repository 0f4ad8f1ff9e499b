"""Which rows of the suite run: a fixed third of the models always, more that a seed draws."""
from __future__ import annotations

import random
from dataclasses import dataclass, replace

#: A batch and how often it is drawn.
BATCHES = {1: 3, 8: 2, 32: 1}
SIZES = {"usual": 0, "other": 1}
EXPORTERS = ("script", "dynamo")

#: Models that always run.
FIXED = """
torchvision/alexnet torchvision/resnet50 torchvision/googlenet torchvision/swin_v2_t torchvision/deeplabv3_mobilenet_v3_large
torchvision/retinanet_resnet50_fpn:backbone torchvision/r2plus1d_18 torchvision/shufflenet_v2_x1_0 torchvision/vgg11_bn
torchvision/inception_v3 torchvision/mobilenet_v3_large torchvision/vit_b_32
timm/cait_xxs24_224 timm/coatnet_pico_rw_224 timm/convit_tiny timm/convnextv2_pico timm/crossvit_9_dagger_240 timm/densenet121
timm/efficientformerv2_s2 timm/efficientnet_b0 timm/fastvit_sa12 timm/gcvit_xxtiny timm/halonet26t timm/hrnet_w18_small
timm/levit_256 timm/mixer_s16_224 timm/mobilevitv2_100 timm/poolformer_s12 timm/regnety_008 timm/resnest14d timm/sequencer2d_s
timm/tf_efficientnet_cc_b0_4e timm/tnt_s_patch16_224 timm/visformer_tiny timm/vit_small_patch16_224 timm/volo_d1_224
timm/xcit_tiny_12_p16_224 timm/botnet26t_256 timm/convmixer_768_32 timm/dla34 timm/edgenext_small_rw timm/ghostnetv2_100
timm/gmlp_ti16_224 timm/lambda_resnet26rpt_256 timm/mambaout_femto timm/mobilevit_s timm/nfnet_f0 timm/pvt_v2_b1
timm/twins_svt_small
transformers/bert transformers/gpt2 transformers/t5 transformers/llama transformers/deberta-v2 transformers/mamba
transformers/modernbert transformers/qwen3_moe transformers/xlnet transformers/longformer transformers/fnet
transformers/segformer transformers/swinv2 transformers/wav2vec2 transformers/whisper transformers/clip transformers/siglip
transformers/albert transformers/bloom transformers/convbert transformers/gemma2 transformers/mistral transformers/opt
transformers/yolos transformers/hubert
""".split()

#: Models of which the seed draws.
OTHERS = """
torchvision/squeezenet1_1 torchvision/mnasnet1_0 torchvision/regnet_y_400mf torchvision/efficientnet_v2_s torchvision/maxvit_t
torchvision/swin_t torchvision/lraspp_mobilenet_v3_large torchvision/fcn_resnet50 torchvision/mvit_v2_s torchvision/s3d
torchvision/fasterrcnn_mobilenet_v3_large_320_fpn:backbone torchvision/ssdlite320_mobilenet_v3_large:backbone
torchvision/raft_small
timm/bat_resnext26ts timm/beit_base_patch16_224 timm/caformer_s18 timm/coat_lite_mini timm/coatnext_nano_rw_224
timm/convnext_nano_ols timm/cs3darknet_focus_m timm/cspresnext50 timm/cspdarknet53 timm/davit_tiny
timm/deit_tiny_distilled_patch16_224 timm/dpn68 timm/ecaresnet26t timm/efficientformer_l1 timm/efficientvim_m2
timm/efficientvit_b1 timm/efficientvit_m5 timm/ese_vovnet19b_slim timm/eva02_tiny_patch14_224 timm/fasternet_t2 timm/fbnetv3_d
timm/flexivit_small timm/focalnet_tiny_srf timm/gcresnext26ts timm/gernet_s timm/gmixer_12_224 timm/haloregnetz_b
timm/hgnetv2_b2 timm/hiera_tiny_224 timm/iformer_m_distilled timm/inception_next_atto timm/lcnetv2_large
timm/legacy_seresnext26_32x4d timm/lowformer_b0 timm/maxxvitv2_nano_rw_256 timm/mixnet_s timm/mobilenetv4_conv_small
timm/mobilenetv4_hybrid_medium timm/mobileone_s3 timm/mvitv2_tiny timm/nest_tiny timm/nextvit_small timm/nf_regnet_b0
timm/pit_xs_distilled_224 timm/poolformerv2_s12 timm/rdnet_tiny timm/regnetz_b16 timm/repghostnet_100 timm/repvgg_a1
timm/repvit_m1_1 timm/res2net50_48w_2s timm/resmlp_12_224 timm/resnetblur18 timm/resnetrs50 timm/resnetv2_50 timm/rexnet_150
timm/samvit_base_patch16_224 timm/sebotnet33ts_256 timm/selecsls42 timm/shvit_s2 timm/skresnet18 timm/starnet_s3
timm/swiftformer_l1 timm/swinv2_cr_tiny_224 timm/tiny_vit_5m_224 timm/tinynet_a timm/tresnet_m timm/vitamin_small_224
timm/xception41p
transformers/bart transformers/big_bird transformers/biogpt transformers/canine transformers/codegen transformers/ctrl
transformers/deberta transformers/distilbert transformers/electra transformers/esm transformers/falcon transformers/flaubert
transformers/pegasus transformers/gemma3_text transformers/gpt_neo transformers/gpt_neox transformers/gptj transformers/granite
transformers/ibert transformers/layoutlm transformers/lfm2 transformers/mixtral transformers/mobilebert transformers/mpnet
transformers/mpt transformers/nystromformer transformers/olmo2 transformers/phi transformers/phi3 transformers/qwen2
transformers/rembert transformers/roberta transformers/roformer transformers/rwkv transformers/squeezebert transformers/stablelm
transformers/starcoder2 transformers/umt5 transformers/xglm transformers/xlm transformers/yoso transformers/beit
transformers/cvt transformers/dinov2_with_registers transformers/dinov2 transformers/donut-swin transformers/dpt
transformers/focalnet transformers/glpn transformers/hiera transformers/levit transformers/mobilevit transformers/pvt
transformers/regnet transformers/swiftformer transformers/vit_mae transformers/audio-spectrogram-transformer transformers/sew
transformers/speech_to_text transformers/wavlm transformers/blip transformers/clipseg transformers/groupvit transformers/owlvit
transformers/vilt transformers/layoutlmv3
""".split()


@dataclass(frozen=True)
class Row:
    """A model, its inputs, and the exporter that is tried first."""

    model: str
    batch: int
    size: str
    exporter: str

    def __str__(self) -> str:
        return f"{self.model}@{self.batch},{self.size},{self.exporter}"


def row(model: str, seed: int) -> Row:
    """The row that a seed gives a model; `MODEL@BATCH,SIZE,EXPORTER` states it instead."""
    name, _, stated = model.partition("@")
    if stated:
        batch, size, exporter = stated.split(",")
        return Row(name, int(batch), size, exporter)
    generator = random.Random(f"{seed} {name}")
    batch = generator.choices(list(BATCHES), list(BATCHES.values()))[0]
    return Row(name, batch, generator.choice(list(SIZES)), generator.choice(EXPORTERS))


def rows(seed: int, count: int) -> list[Row]:
    """The fixed rows, which are the same for every seed, and `count` drawn ones."""
    drawn = random.Random(seed).sample(OTHERS, min(count, len(OTHERS)))
    return [row(name, 0) for name in FIXED] + [row(name, seed) for name in drawn]


#: Models of transformers that are not of text alone.
IMAGES = """segformer swinv2 beit cvt dinov2_with_registers dinov2 donut-swin dpt focalnet glpn hiera levit mobilevit pvt regnet swiftformer vit_mae
yolos""".split()
SOUND = "wav2vec2 whisper audio-spectrogram-transformer hubert sew speech_to_text wavlm".split()
IMAGES_AND_TEXT = "clip vilt blip clipseg groupvit owlvit siglip layoutlmv3".split()


def stratum(model: str) -> str:
    """The part of the suite that a model stands for."""
    library, _, name = model.partition("/")
    if library != "transformers":
        return library
    parts = {"images": IMAGES, "sound": SOUND, "images and text": IMAGES_AND_TEXT}
    return next((part for part, names in parts.items() if name in names), "text")


def stratified(seed: int, each: int, batch: int | None = None) -> list[Row]:
    """Rows of as many models of each stratum, drawn by a seed."""
    generator, strata = random.Random(seed), {}
    for model in FIXED + OTHERS:
        strata.setdefault(stratum(model), []).append(model)
    drawn = [row(model, seed) for models in strata.values() for model in generator.sample(models, min(each, len(models)))]
    return [replace(one, batch=batch) if batch else one for one in drawn]
