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
)

// callLimits returns the listener's limits for a process with that much memory; 0 means unknown.
func callLimits(c config.API, memory int64) (connections int, l api.Limits) {
	connections, inFlight := mostConnections, int64(mostInFlight)
	if memory > 0 {
		connections = int(min(max(memory/memoryPerConnection, leastConnections), mostConnections))
		inFlight = min(max(memory/memoryPerByte, leastInFlight), mostInFlight)
	}
	connections = cmp.Or(c.MaxConnections, connections)
	return connections, api.Limits{MaxInFlight: cmp.Or(int64(c.MaxInFlight), inFlight), MaxCalls: connections}
}

// limitHeap makes the garbage collector respect the memory limit of the process's cgroup, unless
// GOMEMLIMIT is set. A fifth of the limit is left for what the collector does not see: the page cache,
// kernel stacks, and commands that run as daemons. It returns the limit of the cgroup, 0 if there is
// none.
func limitHeap(log *slog.Logger) int64 {
	limit := cgroupMemory()
	if limit == 0 || debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return limit
	}
	heap := limit / 5 * 4
	debug.SetMemoryLimit(heap)
	log.Debug("memory is limited by the cgroup", "limit_bytes", limit, "heap_bytes", heap)
	return limit
}
