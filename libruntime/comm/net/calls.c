/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/net/calls.h"

#include <stdint.h>

/* The kinds of relocations by which a library finds a function of another; glibc finds its tables. */
#ifdef __GLIBC__
#include <elf.h>
#if defined(__x86_64__) && defined(__LP64__)
enum { SLOT = R_X86_64_JUMP_SLOT, ADDRESS = R_X86_64_GLOB_DAT };
#define KNOWN_MACHINE
#elif defined(__aarch64__) && defined(__LP64__)
enum { SLOT = R_AARCH64_JUMP_SLOT, ADDRESS = R_AARCH64_GLOB_DAT };
#define KNOWN_MACHINE
#elif defined(__powerpc64__) && defined(_CALL_ELF) && _CALL_ELF == 2
enum { SLOT = R_PPC64_JMP_SLOT, ADDRESS = R_PPC64_GLOB_DAT };
#define KNOWN_MACHINE
#elif defined(__riscv) && __riscv_xlen == 64
enum { SLOT = R_RISCV_JUMP_SLOT, ADDRESS = R_RISCV_64 };
#define KNOWN_MACHINE
#endif
#endif

#ifdef KNOWN_MACHINE

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct library {
	const struct link_map *map;
	const ElfW(Rela) *of_calls, *of_data; /* relocations */
	size_t call_count, data_count;
	const ElfW(Sym) *symbols;
	const char *names;
} library;

/* Some machines' dynamic linkers relocate the addresses in the dynamic section, some do not. */
static const void *address_of(const struct link_map *map, const ElfW(Dyn) *entry)
{
	const uintptr_t address = entry->d_un.d_ptr;

	return (const void *)(address < map->l_addr ? address + map->l_addr : address);
}

static bool read_library(const struct link_map *map, library *l)
{
	bool has_addends = true;

	*l = (library){ .map = map };
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_JMPREL: l->of_calls = address_of(map, d); break;
		case DT_PLTRELSZ: l->call_count = d->d_un.d_val / sizeof(*l->of_calls); break;
		case DT_PLTREL: has_addends = d->d_un.d_val == DT_RELA; break;
		case DT_RELA: l->of_data = address_of(map, d); break;
		case DT_RELASZ: l->data_count = d->d_un.d_val / sizeof(*l->of_data); break;
		case DT_SYMTAB: l->symbols = address_of(map, d); break;
		case DT_STRTAB: l->names = address_of(map, d); break;
		default: break;
		}
	}
	return has_addends && l->symbols != NULL && l->names != NULL;
}

/* Calls `visit` for each place where the library keeps the address of that function. */
static bool for_each_place(const library *l, const char *name,
                           bool (*visit)(const library *l, void **place, const ddp_call *call), const ddp_call *call)
{
	bool found = false;

	for (int table = 0; table < 2; table++) {
		const ElfW(Rela) *relocations = table == 0 ? l->of_calls : l->of_data;
		const size_t count = relocations == NULL ? 0 : table == 0 ? l->call_count : l->data_count;
		for (size_t i = 0; i < count; i++) {
			const unsigned long kind = ELF64_R_TYPE(relocations[i].r_info);
			const ElfW(Sym) *symbol = &l->symbols[ELF64_R_SYM(relocations[i].r_info)];
			if ((kind != SLOT && kind != ADDRESS) || strcmp(l->names + symbol->st_name, name) != 0)
				continue;
			found = true;
			if (!visit(l, (void **)(l->map->l_addr + relocations[i].r_offset), call))
				return false;
		}
	}
	return found;
}

/* Another part of the process may have replaced the call before, and is then called by ours. A call
   that was never made leads to the dynamic linker, by way of the library itself. */
static bool keep_theirs(const library *l, void **place, const ddp_call *call)
{
	void *now = __atomic_load_n(place, __ATOMIC_ACQUIRE);
	Dl_info owner;

	if (call->theirs != NULL && now != NULL && now != call->ours && dladdr(now, &owner) != 0 &&
	    owner.dli_fbase != (void *)l->map->l_addr)
		*call->theirs = now;
	return true;
}

typedef struct placing {
	const library *library;
	void **place;
	void *ours;
	bool done;
} placing;

/* The dynamic linker may have made the place read-only. It lets one thread at a time be here, so that
   another part of the process does not do the same meanwhile. */
static int put(struct dl_phdr_info *info, size_t bytes, void *argument)
{
	placing *p = argument;
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)p->place, begin = at & ~(page - 1);
	bool locked = false;

	(void)bytes;
	if (info->dlpi_addr != p->library->map->l_addr)
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &info->dlpi_phdr[i];
		const uintptr_t from = info->dlpi_addr + part->p_vaddr;
		locked = locked || (part->p_type == PT_GNU_RELRO && at >= (from & ~(page - 1)) && at < from + part->p_memsz);
	}
	if (locked && mprotect((void *)begin, page, PROT_READ | PROT_WRITE) != 0)
		return 1;
	__atomic_store_n(p->place, p->ours, __ATOMIC_RELEASE);
	if (locked)
		(void)mprotect((void *)begin, page, PROT_READ);
	p->done = true;
	return 1;
}

static bool put_ours(const library *l, void **place, const ddp_call *call)
{
	placing p = { .library = l, .place = place, .ours = call->ours };

	(void)dl_iterate_phdr(put, &p);
	return p.done;
}

static bool nothing(const library *l, void **place, const ddp_call *call)
{
	(void)l;
	(void)place;
	(void)call;
	return true;
}

const char *ddp_calls_replace(void *libraries, const char *symbol, const ddp_call *calls, int count)
{
	void *inside = dlsym(libraries, symbol);
	struct link_map *map = NULL;
	Dl_info info;
	library l;

	if (inside == NULL || dladdr1(inside, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL)
		return "its transports' library is not found";
	if (!read_library(map, &l))
		return "its transports' library has its relocations in a form that libddp does not read";
	for (int i = 0; i < count; i++) {
		void *theirs = dlsym(libraries, calls[i].name);
		if (theirs == NULL || !for_each_place(&l, calls[i].name, nothing, &calls[i]))
			return "it uses other functions for its sockets";
		if (calls[i].theirs != NULL)
			*calls[i].theirs = theirs;
	}
	for (int i = 0; i < count; i++) {
		(void)for_each_place(&l, calls[i].name, keep_theirs, &calls[i]);
		if (!for_each_place(&l, calls[i].name, put_ours, &calls[i]))
			return "the addresses of its calls cannot be written";
	}
	return NULL;
}

#else

const char *ddp_calls_replace(void *libraries, const char *symbol, const ddp_call *calls, int count)
{
	(void)libraries;
	(void)symbol;
	(void)calls;
	(void)count;
	return "calls of libraries cannot be replaced on this kind of machine";
}

#endif
