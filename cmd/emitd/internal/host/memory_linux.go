package host

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// cgroupMemory returns the memory limit of the process's cgroup in bytes, 0 if there is none.
func cgroupMemory() int64 { return cgroupMemoryIn(os.DirFS("/")) }

// unlimited is less than what a version 1 cgroup without a limit reports: about 2^63 rounded to pages.
const unlimited = 1 << 60

// cgroupMemoryIn is cgroupMemory for another root directory. A cgroup's limit also holds for the cgroups
// below it, so the lowest limit on the way up counts. In a container the path may be one of the host;
// then only the visible part of it counts.
func cgroupMemoryIn(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	least := int64(unlimited)
	for line := range strings.Lines(string(text)) { // <number>:<controllers>:<path>
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		var mounts []string
		name := "memory.max"
		switch {
		case controllers == "": // version 2
			mounts = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		case strings.Contains(","+controllers+",", ",memory,"):
			mounts, name = []string{"sys/fs/cgroup/memory"}, "memory.limit_in_bytes"
		}
		for _, mount := range mounts {
			for group := path.Clean("/" + group); ; group = path.Dir(group) {
				least = min(least, limitOf(root, path.Join(mount, group, name)))
				if group == "/" {
					break
				}
			}
		}
	}
	if least == unlimited {
		return 0
	}
	return least
}

func limitOf(root fs.FS, file string) int64 {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return unlimited
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // or "max"
	if err != nil || n <= 0 || n > unlimited {
		return unlimited
	}
	return n
}
