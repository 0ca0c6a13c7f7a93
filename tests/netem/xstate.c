/* Lets a User-Mode Linux kernel run on a CPU with more register state than it knows; for LD_PRELOAD.
 *
 * A UML kernel keeps the floating-point registers of its processes in buffers of a size that was fixed when it was
 * compiled. The host's kernel gives as much of them as fits (PTRACE_GETREGSET), but takes nothing less than all of
 * them (PTRACE_SETREGSET, EFAULT), and all of them has grown: with AMX from 2,696 to 11,008 bytes. So what UML sets is
 * filled up with zeros. They stand for nothing: which parts of the state are in use is said in its first 576 bytes,
 * and the tiles of AMX never are, since using them takes a permission (ARCH_REQ_XCOMP_PERM) that UML passes on to
 * nobody. Where the sizes agree, nothing is changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static long (*next)(enum __ptrace_request, ...);
static unsigned char whole[1 << 16]; /* static: we are called on the kernel's small stack, by its one CPU */
static size_t size;                  /* of the host's state; 0 as long as it is not known */

__attribute__((constructor)) static void find_next(void)
{
	next = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	if (request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE)
		return next(request, pid, address, data);
	if (!size) {
		struct iovec all = {whole, sizeof whole};
		if (next(PTRACE_GETREGSET, pid, address, &all))
			return -1;
		size = all.iov_len;
		memset(whole, 0, sizeof whole);
	}
	const struct iovec *given = data;
	if (given->iov_len >= size)
		return next(request, pid, address, data);
	memcpy(whole, given->iov_base, given->iov_len);
	struct iovec filled = {whole, size};
	return next(request, pid, address, &filled);
}
