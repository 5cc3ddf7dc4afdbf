// Links between cards: peer access, pair by pair, and copies whose content the caller compares.
#pragma once

#include "cuda_api.h"

int find_card(const char * bus_id, char * uuid, char * text, size_t text_size);
bool card_facts(int card, char * bus_id, size_t bus_id_size, size_t * memory_bytes, char * text, size_t text_size);
int enable_peer(int card, int peer, char * text, size_t text_size);
void disable_peer(int card, int peer);
bool copy_between(int from, int to, bool by_kernel, const void * sent, void * received, size_t size, double deadline_s,
                  char * text, size_t text_size);
