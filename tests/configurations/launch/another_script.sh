#!/bin/bash
export TP=4 PP=2
MBS=3
export MBS=1
bash inner.inc 4096 --bf16 "--vocab-size 50257"
