#pragma once

#include <stddef.h>

void pg_log_install(int min_level);
int pg_log_last_error(char * text, size_t size);
