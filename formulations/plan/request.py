"""A user's request: a model on a cluster with a batch and a memory limit, and the parameters of a problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainplan.profiling.base.display import in_one_line
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.processes import Report
from trainplan.profiling.clusters.cluster import Cluster
from trainplan.profiling.models.model import Model
from trainplan.profiling.models.precision import PLAIN, Precision, usual_precision
from trainplan.profiling.profile_sources import obtain_profile
from trainplan.profiling.profiles import Profile

MOST_SAMPLES = 2**20  # of a step


@in_one_line
@dataclass(frozen=True)
class Request:
    """A user's planning request, from which any problem can build its instances (costs and memory limits).

    Attributes:
        model: the model to train; None if `profile` describes it.
        cluster: the cluster to train on; None if `profile` stands for it.
        batch: samples per step over all devices; None only for problems whose instance has its own batch.
        memory_bytes: memory of one device (default: the usable memory of the cluster's devices, or of the profile's).
        profile: an existing profile of costs; without one, costs are measured on this machine if `measured`, else estimated
            from shapes.
        options: values of the problem's parameters by name, checked and complete.
        margin_bytes: how much less memory than there is the solver gets, so that the compiled programs fit.
        report: called with texts about the progress of measuring.
        obtained: the first profile that was obtained for the request, kept so that nothing is measured twice.
    """

    model: Model | None
    cluster: Cluster | None
    batch: int | None
    memory_bytes: int | None = None
    profile: Profile | None = None
    measured: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    margin_bytes: int = 0
    report: Report | None = None
    obtained: list[Profile] = field(default_factory=list, compare=False, repr=False)

    @property
    def origin(self) -> Cluster | Profile:
        """The object that describes the devices and their memory: the request's cluster or, without one, its profile. Raises
        InputError if there is neither.
        """
        origin = self.cluster or self.profile
        if origin is None:
            raise InputError("command line", "--cluster", "is missing", "give it, or a --profile")
        return origin

    @property
    def described_model(self) -> Model | None:
        """The request's model or, without one, the model that its profile describes; None if the profile describes none."""
        return self.profile.described_model if self.profile and not self.model else self.model

    @property
    def chain(self) -> Model | Profile:
        """The object that lists the model's layers in order: the described model or, if there is none, the profile. Raises
        InputError if there is neither.
        """
        chain = self.described_model or self.profile
        if chain is None:
            raise InputError("command line", "--model", "is missing", "give it, or a --profile")
        return chain

    @property
    def precision(self) -> Precision:
        """The dtypes of gradients and optimizer states of the request's plans (for plans with states on the host it does not
        apply). Raises InputError if the option for float32 gradients is set although neither the model nor the optimizer uses
        float32."""
        if self.profile is not None:
            usual = self.profile.precision
        else:
            usual = PLAIN if self.model is None else usual_precision(self.model.element_bytes)
        if self.options.get("gradients") in (None, "model"):
            return usual
        if (model := self.described_model) is not None and model.dtype == "float32":
            return usual
        if usual.master is None:
            fix = "leave it out: the optimizer works in the model's dtype, without float32 masters"
            raise InputError("command line", "--gradients", "is float32", fix)
        return usual.changed(gradients="float32")

    @property
    def samples(self) -> int:
        """The number of samples per step, over all devices. Raises InputError if the batch is missing, not positive, or too
        large."""
        if self.batch is None:
            raise InputError("command line", "--batch", "is missing", "give the samples of one step, over all devices")
        if not 1 <= self.batch <= MOST_SAMPLES:
            raise InputError("command line", "--batch", f"is {self.batch}", f"give 1 to {MOST_SAMPLES} samples")
        return self.batch

    @property
    def limit_bytes(self) -> int:
        """The memory of one device that a solver may use, in bytes: the given or usable memory, less the margin."""
        whole = self.origin.usable_bytes if self.memory_bytes is None else self.memory_bytes
        return max(1, whole - self.margin_bytes)

    @property
    def cluster_name(self) -> str:
        """The name of the cluster, or of the cluster that the profile was made for."""
        return self.cluster.name if self.cluster else self.origin.cluster  # type: ignore[union-attr]

    def with_margin(self, margin_bytes: int) -> Request:
        """A copy of the request in which the solver gets `margin_bytes` less memory per device than there is."""
        return replace(self, margin_bytes=margin_bytes)

    def profile_for(
        self,
        sizes: Sequence[int],
        groups: Sequence[int],
        devices: int | None = None,
        degrees: Sequence[int] | None = None,
    ) -> Profile:
        """The profile with the costs of sub-layers for all requested sizes: the given profile, or one that is measured or
        estimated now.

        Args:
            sizes: numbers of samples per micro-batch.
            groups: numbers of devices of a stage.
            devices: the number of devices that the profile is for (default: all devices of the request).
            degrees: degrees of tensor parallelism (default: all powers of two that the model can be split into).

        Raises InputError if the request has neither a profile nor a model and cluster, or if the profile lacks a size.
        """
        earlier = self.profile or (self.obtained[0] if self.measured and self.obtained else None)
        profile = obtain_profile(
            self.model,
            self.cluster,
            sizes,
            groups,
            devices=self.origin.devices if devices is None else devices,
            degrees=degrees,
            earlier=earlier,
            measured=self.measured,
            progress=self.report,
        )
        if not self.obtained:
            self.obtained.append(profile)
        return profile
