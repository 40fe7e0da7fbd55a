"""Models of this package in the library transformers: after `import adlm.hf` its `Auto` classes know them.

`AutoModelForMaskedLM` gives MDLM and ADLM, `AutoModelForCausalLM` AR and A2R, from folders that `export` or
`save_pretrained` wrote. Such a folder also has `modeling_adlm.py`, with which those load it who do not have this
package and choose `trust_remote_code=True`. Nothing here ever chooses that.
"""

from adlm.errors import optional_module

optional_module("transformers", extra="hf", purpose="a model for the library transformers")

from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM  # noqa: E402

from adlm.hf.config import AdlmConfig  # noqa: E402
from adlm.hf.folder import export, text_model  # noqa: E402
from adlm.hf.models import AdlmForCausalLM, AdlmForMaskedLM  # noqa: E402
from adlm.hf.tokenizer import fast_tokenizer  # noqa: E402

__all__ = ["AdlmConfig", "AdlmForCausalLM", "AdlmForMaskedLM", "export", "fast_tokenizer", "text_model"]

AutoConfig.register(AdlmConfig.model_type, AdlmConfig, exist_ok=True)
AutoModelForMaskedLM.register(AdlmConfig, AdlmForMaskedLM, exist_ok=True)
AutoModelForCausalLM.register(AdlmConfig, AdlmForCausalLM, exist_ok=True)
