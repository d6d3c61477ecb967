"""Create the vocabulary, the weights and the labels of this example from the sentences below."""

import re
from pathlib import Path

import numpy as np

MODELS = Path(__file__).with_name("models")
SENTENCES = {
    "sport": (
        "the team won the match with a goal in the last minute",
        "she ran the marathon faster than any runner before her",
        "the players train for the final of the cup",
        "he scored twice and the fans cheered in the stadium",
        "the coach praised the goalkeeper after the game",
        "tennis and football are played in the summer league",
        "the swimmer won gold and broke the record at the championship",
    ),
    "cooking": (
        "fry the onions in butter until they are golden",
        "stir the sauce and season it with salt and pepper",
        "bake the bread in a hot oven for half an hour",
        "chop the garlic and add it to the soup",
        "this recipe needs flour eggs sugar and a little milk",
        "boil the pasta and serve it with cheese",
        "the dish tastes of lemon and fresh herbs from the kitchen",
    ),
    "finance": (
        "the bank raised its interest rate by half a point",
        "investors sold their shares after the annual results",
        "the stock market fell and the price of bonds rose",
        "the company reported a profit and paid a dividend",
        "inflation and debt worry the central bank",
        "she put her savings into a fund with low fees",
        "the budget deficit grew as taxes and revenue fell",
    ),
    "weather": (
        "heavy snow is expected in the mountains tonight",
        "it will be cloudy tomorrow with a chance of showers",
        "the storm brought rain and strong wind to the coast",
        "the temperature dropped below zero and the roads were icy",
        "sunshine and warm air arrive at the weekend",
        "fog covered the valley until the sun came through",
        "the forecast warns of thunder hail and floods",
    ),
}


def main():
    labels = list(SENTENCES)
    texts = [(re.findall(r"[a-z]+", text), labels.index(label)) for label in labels for text in SENTENCES[label]]
    vocabulary = ["[padding]", "[unknown]", *sorted({word for words, _ in texts for word in words})]
    # One row for each sentence; its values are the relative frequencies of the words.
    shares = np.zeros((len(texts), len(vocabulary)))
    for row, (words, _) in zip(shares, texts):
        np.add.at(row, [vocabulary.index(word) for word in words], 1 / len(words))
    wanted = np.eye(len(labels))[[label for _, label in texts]]
    weights = np.zeros((len(vocabulary), len(labels)))
    for _ in range(2000):  # logistic regression by gradient descent, with regularisation
        powers = np.exp(shares @ weights)
        guessed = powers / powers.sum(axis=1, keepdims=True)
        weights += 20 * (shares.T @ (wanted - guessed) / len(texts) - 0.0004 * weights)
    (MODELS / "tokenizer" / "1" / "vocabulary.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (MODELS / "text_pipeline" / "1" / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
    np.savetxt(MODELS / "classifier" / "1" / "weights.txt", weights, fmt="%7.2f")


if __name__ == "__main__":
    main()
