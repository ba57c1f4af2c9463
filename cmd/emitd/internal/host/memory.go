package host

import (
	"cmp"
	"log/slog"
	"math"
	"runtime/debug"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/queue/api"
)

// The limits of what a process holds for its callers follow from its memory, unless they are configured.
// With 256 MiB there are 1,024 connections and 32 MiB of bodies and payloads.
const (
	memoryPerConnection = 256 << 10
	memoryPerByte       = 8 // of a body: decoded, written and sent; the process itself needs the rest
	mostConnections     = 10_000
	leastConnections    = 64
	mostInFlight        = 256 << 20
	leastInFlight       = 4 << 20
	mostSendBuffer      = 4 << 20 // what Linux takes by itself
)

// callLimits returns the listener's limits for a process with that much memory; 0 means unknown.
func callLimits(c config.API, memory int64) (places, api.Limits) {
	connections, inFlight := mostConnections, int64(mostInFlight)
	if memory > 0 {
		connections = int(min(max(memory/memoryPerConnection, leastConnections), mostConnections))
		inFlight = min(max(memory/memoryPerByte, leastInFlight), mostInFlight)
	}
	connections = cmp.Or(c.MaxConnections, connections)
	return places{connections, sendBuffer(memory, connections)}, api.Limits{MaxInFlight: cmp.Or(int64(c.MaxInFlight), inFlight), MaxCalls: connections}
}

// places is how many connections a listener has, and what each may cost.
type places struct {
	connections int
	sendBuffer  int // bytes; 0: what the kernel chooses
}

// sendBuffer returns how many bytes of its answers the kernel may hold for one connection of a process with that much
// memory; 0 leaves it to the kernel. A call has ended, and no longer counts in the budget, when the kernel has its
// answer. On its own the kernel takes up to 4 MiB for each connection, so 20 clients that read nothing would use 80 MiB of
// the cgroup. The kernel allows twice the number for its own bookkeeping: all connections together use half the memory
// at most. With 256 MiB it is 64 KiB, which is 6 MB/s to a client that is 20 ms away.
func sendBuffer(memory int64, connections int) int {
	if memory == 0 {
		return 0
	}
	return int(min(memory/4/int64(connections), mostSendBuffer))
}

// limitHeap makes the garbage collector respect the memory limit of the process's cgroup, unless
// GOMEMLIMIT is set. Three tenths of the limit are left for what the collector does not see: the buffers of
// sockets, page tables, the page cache, kernel stacks, and commands that run as daemons. A fifth was too
// little: on an overloaded machine the kernel killed a node of 256 MiB under attack, whose heap kept to its
// limit. It returns the limit of the cgroup, 0 if there is none.
func limitHeap(log *slog.Logger) int64 {
	limit := cgroupMemory()
	if limit == 0 || debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return limit
	}
	heap := limit / 10 * 7
	debug.SetMemoryLimit(heap)
	log.Debug("memory is limited by the cgroup", "limit_bytes", limit, "heap_bytes", heap)
	return limit
}
