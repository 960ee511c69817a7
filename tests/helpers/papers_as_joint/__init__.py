"""The papers' problems stated as restrictions of the joint problem; tests hold both to the same costs (see `restrict`)."""
