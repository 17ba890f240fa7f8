"""Log and reload three small models with MLflow's PyTorch, scikit-learn and Transformers flavors.

    mlplatform submit food11/flavors.py
    python food11/flavors.py

The lesson: a flavor's `log_model` stores a model together with everything needed to load it, and its `load_model`
returns an object of that library with the same predictions. Flavors differ in what they write: a pickle of the network;
scikit-learn's own safe format; a folder with weights, configuration and tokenizer. (`mlflow.tensorflow` is left out,
because the image does not include TensorFlow; store its models as checkpoints, as `tensorflow_mirrored.py` does.)
Nothing is downloaded: the Transformers model is a BERT so small that its configuration fits on one line, with the words
of this text as vocabulary.
"""

import json

import mlflow
import torch

EXPERIMENT = "flavors"


def pytorch_model() -> bool:
    """Log a network as a pickle, the platform's default (MLflow's default format requires an input example)."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    logged = mlflow.pytorch.log_model(net, name="pytorch", pip_requirements=["torch"])
    again = mlflow.pytorch.load_model(logged.model_uri)
    inputs = torch.rand(5, 4)
    return torch.equal(net(inputs), again(inputs))


def sklearn_model() -> bool:
    """Log a digit classifier. It uses only scikit-learn's own types, which the safe format (skops) accepts."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    pixels, digits = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=2000).fit(pixels[:1000] / 16, digits[:1000])
    mlflow.log_metric("sklearn_accuracy", model.score(pixels[1000:] / 16, digits[1000:]))
    logged = mlflow.sklearn.log_model(model, name="sklearn", pip_requirements=["scikit-learn", "skops"])
    again = mlflow.sklearn.load_model(logged.model_uri)
    return (again.predict(pixels / 16) == model.predict(pixels / 16)).all()


def transformers_model() -> bool:
    """Log a Transformers pipeline of tokenizer and network."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.trainers import WordLevelTrainer
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

    words = Tokenizer(WordLevel(unk_token="[UNK]"))  # noqa: S106
    words.pre_tokenizer = Whitespace()
    words.train_from_iterator([__doc__], WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")  # noqa: S106
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **shape)).eval()
    classifier = pipeline("text-classification", model=model, tokenizer=tokenizer)
    logged = mlflow.transformers.log_model(classifier, name="transformers", pip_requirements=["transformers", "torch"])
    again = mlflow.transformers.load_model(logged.model_uri)
    sentence = "nothing is downloaded"
    return again(sentence) == classifier(sentence)


def main() -> None:
    torch.manual_seed(0)
    mlflow.set_experiment(EXPERIMENT)
    with mlflow.start_run(run_name="flavors"):
        same = {}
        for flavor in (pytorch_model, sklearn_model, transformers_model):
            same[flavor.__name__] = bool(flavor())
            print(f"{flavor.__name__}: same predictions after reload: {same[flavor.__name__]}", flush=True)
        mlflow.log_dict(same, "same_answers.json")
    print(f"same answers: {json.dumps(same)}")


if __name__ == "__main__":
    main()
