"""Saves tiny models with random weights and a tokenizer of a few words; run by the interpreter that will serve them.

Prints what pipelines answer in this process, one text at a time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

folder = Path(sys.argv[1])
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "red",
    "blue",
    "good",
    "bad",
    "in",
    "paris",
    "lives",
    "anna",
    "this",
    "example",
    "is",
    ".",
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"]
TEXTS = ["the cat sat on the mat .", "a good dog", "anna lives in paris"]
SIZES = {
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "initializer_range": 1.0,
}


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        eos_token="</s>",
        model_max_length=32,
    )


def save(name: str, model: transformers.PreTrainedModel, processor: object = None, **options: object) -> Path:
    torch.manual_seed(0)
    version = folder / name / "1"
    model.eval().save_pretrained(version, **options)
    (processor or tokenizer()).save_pretrained(version)
    return version


def labels(*names: str) -> dict[str, object]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


torch.manual_seed(0)
sentiment = transformers.BertConfig(**SIZES, **labels("negative", "neutral", "positive"))
classifier = transformers.BertForSequenceClassification(sentiment)
save("sentiment", classifier)
save("sharded", classifier, max_shard_size="4KB")
save("entities", transformers.BertForTokenClassification(transformers.BertConfig(**SIZES, **labels("O", "PER", "LOC"))))
save("mask", transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)))
encoder = transformers.BertModel(transformers.BertConfig(**SIZES))
save("vectors", encoder)
sentences = save("sentences", encoder)  # as sentence-transformers writes it
types = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling", "models.Normalize"]
paths = ["", "1_Pooling", "2_Normalize"]
(sentences / "1_Pooling").mkdir()
(sentences / "1_Pooling" / "config.json").write_text(
    '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
)
(sentences / "modules.json").write_text(
    json.dumps(
        [{"type": f"sentence_transformers.{kind}", "path": path} for kind, path in zip(types, paths, strict=True)]
    )
)
gpt2 = transformers.GPT2Config(
    vocab_size=SIZES["vocab_size"],
    n_embd=16,
    n_layer=1,
    n_head=2,
    n_positions=32,
    initializer_range=1.0,
    **labels("negative", "neutral", "positive"),
)
words = tokenizer()
words.padding_side = "left"
save("last_token", transformers.GPT2ForSequenceClassification(gpt2), words)
words.pad_token = None
save("last_token_alone", transformers.GPT2ForSequenceClassification(gpt2), words)
save("vectors_alone", transformers.GPT2Model(gpt2), words)
entailment = transformers.BertConfig(**SIZES, **labels("contradiction", "neutral", "entailment"))
save("subjects", transformers.BertForSequenceClassification(entailment))
t5 = transformers.T5Config(
    vocab_size=SIZES["vocab_size"],
    d_model=16,
    d_kv=8,
    d_ff=16,
    num_layers=1,
    num_heads=2,
    decoder_start_token_id=0,
    initializer_factor=10.0,
)
save("summary", transformers.T5ForConditionalGeneration(t5))
vit = transformers.ViTConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    image_size=16,
    patch_size=8,
    initializer_range=1.0,
    **labels("cat", "dog"),
)
audio = transformers.Wav2Vec2Config(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    conv_dim=(8,),
    conv_stride=(5,),
    conv_kernel=(10,),
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    **labels("yes", "no"),
)
save("audio", transformers.Wav2Vec2ForSequenceClassification(audio))
size = {"height": 16, "width": 16}
save("images", transformers.ViTForImageClassification(vit), transformers.ViTImageProcessor(size=size))
for name, color in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
    Image.new("RGB", (20, 20), color).save(folder.parent / f"{name}.png")


def ask(task: str, name: str) -> transformers.Pipeline:
    return transformers.pipeline(task, model=str(folder / name / "1"))


classes, marked = ask("text-classification", "sentiment"), ask("token-classification", "entities")
masked, zero = ask("fill-mask", "mask"), ask("zero-shot-classification", "subjects")
last, last_alone = ask("text-classification", "last_token"), ask("text-classification", "last_token_alone")
vectors_alone = ask("feature-extraction", "vectors_alone")
images = ask("image-classification", "images")
vectors = ask("feature-extraction", "vectors")
model, words = transformers.T5ForConditionalGeneration.from_pretrained(folder / "summary" / "1"), tokenizer()
print(
    json.dumps(
        {
            "texts": TEXTS,
            "last": [last(text, top_k=None) for text in TEXTS],
            "last_alone": [last_alone(text, top_k=None) for text in TEXTS],
            "sentences": [
                torch.nn.functional.normalize(torch.tensor(vectors(text)[0][0]), dim=0).tolist() for text in TEXTS
            ],
            "vectors_alone": [torch.tensor(vectors_alone(text)[0]).mean(0).tolist() for text in TEXTS],
            "classes": [classes(text, top_k=None) for text in TEXTS],
            "entities": [marked(text, aggregation_strategy="simple") for text in TEXTS],
            "mask": masked("the [MASK] sat on the mat ."),
            "vectors": [torch.tensor(vectors(text)[0]).mean(0).tolist() for text in TEXTS],
            "subjects": zero(TEXTS[0], candidate_labels=["cat", "paris"]),
            "summary": words.batch_decode(
                model.generate(**words(TEXTS[0], return_tensors="pt"), max_new_tokens=5, min_new_tokens=5),
                skip_special_tokens=True,
            ),
            "images": [images(str(folder.parent / f"{name}.png"), top_k=2) for name in ("red", "blue")],
        },
        default=lambda value: value.tolist(),
    )
)
