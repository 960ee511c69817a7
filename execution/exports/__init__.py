"""Plans for other runtimes: torch.distributed.pipelining, torchtitan, Megatron-LM. See `common` for what is left out."""
