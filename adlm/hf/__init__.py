"""Models of this package in the library transformers: after `import adlm.hf` its `Auto` classes load them.

`AutoModelForMaskedLM` loads MDLM and ADLM, `AutoModelForCausalLM` AR and A2R, `AutoTokenizer` their tokenizers, all
from the folders that `TextModel.save` writes. `export` adds `modeling_adlm.py`, for those who do not have this package
and choose `trust_remote_code=True`. Nothing here ever chooses that.
"""

from adlm.errors import optional_module

optional_module("transformers", extra="hf", purpose="a model for the library transformers")

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM  # noqa: E402

from adlm.hf.folder import add_remote_code, export, wrapped  # noqa: E402
from adlm.hf.modeling_adlm import AdlmConfig  # noqa: E402
from adlm.hf.models import AdlmCausalLM, AdlmMaskedLM  # noqa: E402
from adlm.hf.tokenizer import fast_tokenizer  # noqa: E402

__all__ = ["AdlmCausalLM", "AdlmConfig", "AdlmMaskedLM", "add_remote_code", "export", "fast_tokenizer", "wrapped"]

AutoConfig.register(AdlmConfig.model_type, AdlmConfig, exist_ok=True)
AutoModelForMaskedLM.register(AdlmConfig, AdlmMaskedLM, exist_ok=True)
AutoModelForCausalLM.register(AdlmConfig, AdlmCausalLM, exist_ok=True)
