"""Programs run on processes with torch.distributed."""
