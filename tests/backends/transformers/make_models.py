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


def save(name: str, model: transformers.PreTrainedModel, processor: object = None) -> Path:
    torch.manual_seed(0)
    version = folder / name / "1"
    model.eval().save_pretrained(version)
    (processor or tokenizer()).save_pretrained(version)
    return version


def labels(*names: str) -> dict[str, object]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


torch.manual_seed(0)
sentiment = transformers.BertConfig(**SIZES, **labels("negative", "neutral", "positive"))
save("sentiment", transformers.BertForSequenceClassification(sentiment))
save("entities", transformers.BertForTokenClassification(transformers.BertConfig(**SIZES, **labels("O", "PER", "LOC"))))
save("mask", transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)))
save("vectors", transformers.BertModel(transformers.BertConfig(**SIZES)))
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
size = {"height": 16, "width": 16}
save("images", transformers.ViTForImageClassification(vit), transformers.ViTImageProcessor(size=size))
for name, color in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
    Image.new("RGB", (20, 20), color).save(folder.parent / f"{name}.png")


def ask(task: str, name: str) -> transformers.Pipeline:
    return transformers.pipeline(task, model=str(folder / name / "1"))


classes, marked = ask("text-classification", "sentiment"), ask("token-classification", "entities")
masked, zero = ask("fill-mask", "mask"), ask("zero-shot-classification", "subjects")
images = ask("image-classification", "images")
vectors = ask("feature-extraction", "vectors")
model, words = transformers.T5ForConditionalGeneration.from_pretrained(folder / "summary" / "1"), tokenizer()
print(
    json.dumps(
        {
            "texts": TEXTS,
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
