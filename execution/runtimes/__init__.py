"""Plans for other runtimes: torch alone, torchtitan, Megatron-LM, DeepSpeed, Accelerate. See `common` for what is left out."""
