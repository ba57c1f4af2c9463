package host

import (
	"strings"
	"testing"
	"testing/fstest"
)

// TestCgroupMemory checks that the lowest limit on the way up counts, for both cgroup versions, also if
// the path is that of another root.
func TestCgroupMemory(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files string // alternating names and texts
		want  int64
	}{
		"nothing":                {"", 0},
		"version 2":              {"proc/self/cgroup 0::/a/b sys/fs/cgroup/a/b/memory.max 268435456", 256 << 20},
		"of a parent":            {"proc/self/cgroup 0::/a/b sys/fs/cgroup/a/b/memory.max max sys/fs/cgroup/a/memory.max 1048576", 1 << 20},
		"without":                {"proc/self/cgroup 0::/a sys/fs/cgroup/a/memory.max max", 0},
		"in a container":         {"proc/self/cgroup 0::/ sys/fs/cgroup/memory.max 5242880", 5 << 20},
		"version 1":              {"proc/self/cgroup 4:memory:/a sys/fs/cgroup/memory/a/memory.limit_in_bytes 268435456", 256 << 20},
		"version 1, without":     {"proc/self/cgroup 4:memory:/a sys/fs/cgroup/memory/a/memory.limit_in_bytes 9223372036854771712", 0},
		"path of the host":       {"proc/self/cgroup 4:memory:/docker/x sys/fs/cgroup/memory/memory.limit_in_bytes 268435456", 256 << 20},
		"of several controllers": {"proc/self/cgroup 4:cpu,memory:/a sys/fs/cgroup/memory/a/memory.limit_in_bytes 268435456", 256 << 20},
		"of another controller":  {"proc/self/cgroup 4:memoryless:/a sys/fs/cgroup/memory/a/memory.limit_in_bytes 268435456", 0},
		"nonsense":               {"proc/self/cgroup 0::/a sys/fs/cgroup/a/memory.max -1", 0},
	} {
		root := fstest.MapFS{}
		words := strings.Fields(c.files)
		for i := 0; i < len(words); i += 2 {
			root[words[i]] = &fstest.MapFile{Data: []byte(words[i+1] + "\n")}
		}
		if got := cgroupMemoryIn(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
