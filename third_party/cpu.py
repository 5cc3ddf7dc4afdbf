"""Which instruction sets ggml's CPU module is compiled for, as ggml's CMake options.

Asked of the compiler (`-march=native`) rather than read from /proc/cpuinfo: its answer holds only what both the CPU and
the compiler know. ggml refuses its own GGML_NATIVE together with loadable modules, hence the single options.
"""

from __future__ import annotations

X86 = {
    "GGML_SSE42": ("__SSE4_2__",),
    "GGML_AVX": ("__AVX__",),
    "GGML_F16C": ("__F16C__",),
    "GGML_FMA": ("__FMA__",),
    "GGML_AVX2": ("__AVX2__",),
    "GGML_BMI2": ("__BMI2__",),
    "GGML_AVX_VNNI": ("__AVXVNNI__",),
    "GGML_AVX512": ("__AVX512F__", "__AVX512CD__", "__AVX512VL__", "__AVX512DQ__", "__AVX512BW__"),
    "GGML_AVX512_VBMI": ("__AVX512VBMI__",),
    "GGML_AVX512_VNNI": ("__AVX512VNNI__",),
    "GGML_AVX512_BF16": ("__AVX512BF16__",),
    "GGML_AMX_TILE": ("__AMX_TILE__",),
    "GGML_AMX_INT8": ("__AMX_INT8__",),
    "GGML_AMX_BF16": ("__AMX_BF16__",),
}
ARM = {
    "dotprod": "__ARM_FEATURE_DOTPROD",
    "fp16": "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC",
    "i8mm": "__ARM_FEATURE_MATMUL_INT8",
    "sve": "__ARM_FEATURE_SVE",
    "sve2": "__ARM_FEATURE_SVE2",
}


def options(macros: frozenset[str]) -> dict[str, str]:
    """Return ggml's CMake options for the CPU whose compiler macros these are."""
    if "__x86_64__" in macros:
        return {name: "ON" if macros.issuperset(needed) else "OFF" for name, needed in X86.items()}
    if "__aarch64__" in macros:
        tags = [tag for tag, macro in ARM.items() if macro in macros]
        return {"GGML_CPU_ARM_ARCH": "+".join(["armv8.2-a" if tags else "armv8-a", *tags])}
    return {}
