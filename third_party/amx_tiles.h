// gcc before 11.5, 12.4, 13.3 and 14 takes _tile_loadconfig for a read of 8 bytes (its bug 114098) and leaves out what was
// written behind them. Then ggml's tiles have no shape, and the first use of one is an illegal instruction.
// Included before every C++ file of ggml, by this folder's CMakeLists.txt and recipe.py.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %X0" : : "m"(*(const char(*)[64])(config)))
#endif
