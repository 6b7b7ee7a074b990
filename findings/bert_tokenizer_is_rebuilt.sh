#!/usr/bin/env bash
# The tokenizer of a BERT is not what its tokenizer.json says.
#
# transformers 5.24.0, tokenizers 0.23.3. For tokenizer_class BertTokenizer,
# AutoTokenizer takes the vocabulary of tokenizer.json and builds the rest anew:
# do_lower_case of tokenizer_config.json decides on lower case, and [CLS] and
# [SEP] are added, whatever normalizer and post-processor the file has. The
# library tokenizers, and all that reads the file alone, obeys the file. With
# tokenizer_class PreTrainedTokenizerFast, both give the same ids.
#
# Seen: file 5 7, BertTokenizer 2 6 8 3, PreTrainedTokenizerFast 5 7
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0 tokenizers==0.23.3
seen="$("$folder/venv/bin/python" 2>/dev/null - "$folder" <<'PYTHON'
import json
import pathlib
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

folder = pathlib.Path(sys.argv[1]) / 'model'
folder.mkdir()
words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
words += ['Red', 'red', 'Kite', 'kite']
ids = {word: index for index, word in enumerate(words)}
tokenizer = Tokenizer(models.WordPiece(ids, unk_token='[UNK]'))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.save(str(folder / 'tokenizer.json'))
(folder / 'config.json').write_text(json.dumps({'model_type': 'bert'}))


def by_class(name):
  config = {'tokenizer_class': name, 'do_lower_case': True}
  (folder / 'tokenizer_config.json').write_text(json.dumps(config))
  return AutoTokenizer.from_pretrained(folder)('Red Kite')['input_ids']


found = {'file': tokenizer.encode('Red Kite').ids}
for name in ('BertTokenizer', 'PreTrainedTokenizerFast'):
  found[name] = by_class(name)
print(', '.join(' '.join(map(str, [n, *found[n]])) for n in found))
PYTHON
)"
echo "$seen"
[[ "$seen" == 'file 5 7, BertTokenizer 2 6 8 3, PreTrainedTokenizerFast 5 7' ]]
