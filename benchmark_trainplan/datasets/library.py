"""The data of the benchmark: the instances of trainplan's library."""

from benchopt import BaseDataset

from trainplan.api.library_verbs import library


class Dataset(BaseDataset):
    """One instance of the library, by its name; `trainplan library list` prints the names. By default every instance
    that has a solution."""

    name = "library"
    requirements = ["pip::trainplan"]
    parameters = {"instance": [row["name"] for row in library().rows() if not row["infeasible"]]}
    test_parameters = {"instance": parameters["instance"][:1]}

    def get_data(self):
        """The entry of the instance as a dict: the content of its JSON file."""
        entry = library()[self.instance]
        return {"entry": {**entry.model_dump(mode="json"), "instance": entry.instance().to_dict()}}
