"""Verification of programs: structure, sizes, lifetimes, races, and whether the step computes the model's gradients."""
