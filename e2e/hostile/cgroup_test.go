package hostile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// confined is a memory limit for a process.
type confined struct {
	dir  string   // of the cgroup; empty if systemd made it
	wrap []string // the beginning of the command line
	// Files of the cgroup; the two cgroup versions name them differently.
	peak, kills string
}

const howToConfine = `this drill needs a cgroup with a limit of memory. Any of these will do:
  - run it as root where /sys/fs/cgroup (version 2) or /sys/fs/cgroup/memory (version 1) can be written
  - in a container: docker run --privileged, or podman run --cgroupns=private with a writable /sys/fs/cgroup
  - as a user of a machine with systemd, whose systemd-run --user --scope -p MemoryMax=256M works`

// confine makes a cgroup with a memory limit. The kernel kills processes in it when they need more.
func confine(t *testing.T, bytes int64) *confined {
	t.Helper()
	var tried []error
	for _, try := range []func(name string, bytes int64) (*confined, error){version2, version1, systemd} {
		c, err := try(fmt.Sprintf("emitd-hostile-%d", os.Getpid()), bytes)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		t.Cleanup(func() {
			if c.dir != "" {
				_ = os.Remove(c.dir)
			}
		})
		return c
	}
	t.Fatalf("%s\n\nwhat was tried:\n%v", howToConfine, errors.Join(tried...))
	return nil
}

func version2(name string, bytes int64) (*confined, error) {
	const root = "/sys/fs/cgroup"
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil || !strings.Contains(string(text), "memory") {
		return nil, fmt.Errorf("cgroup version 2 with the memory controller: %q, %w", text, err)
	}
	if err := put(filepath.Join(root, "cgroup.subtree_control"), "+memory"); err != nil {
		return nil, err
	}
	return made(filepath.Join(root, name), "memory.peak", "memory.events", "cgroup.procs", map[string]int64{"memory.max": bytes, "memory.swap.max": 0})
}

func version1(name string, bytes int64) (*confined, error) {
	return made(filepath.Join("/sys/fs/cgroup/memory", name), "memory.max_usage_in_bytes", "memory.oom_control", "cgroup.procs",
		map[string]int64{"memory.limit_in_bytes": bytes})
}

func made(dir, peak, kills, procs string, limits map[string]int64) (*confined, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	for file, n := range limits {
		err := put(filepath.Join(dir, file), strconv.FormatInt(n, 10))
		if err != nil && (n != 0 || !errors.Is(err, os.ErrNotExist)) { // no swap to forbid
			_ = os.Remove(dir)
			return nil, err
		}
	}
	return &confined{
		dir: dir, peak: filepath.Join(dir, peak), kills: filepath.Join(dir, kills),
		wrap: []string{"/bin/sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(dir, procs)},
	}, nil
}

func put(file, text string) error { return os.WriteFile(file, []byte(text), 0o644) }

// systemd requests a scope from the user's systemd.
func systemd(_ string, bytes int64) (*confined, error) {
	wrap := []string{"systemd-run", "--user", "--scope", "--quiet", "-p", fmt.Sprintf("MemoryMax=%d", bytes), "-p", "MemorySwapMax=0"}
	if out, err := exec.Command(wrap[0], append(wrap[1:], "true")...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("systemd-run: %w: %s", err, out)
	}
	return &confined{wrap: wrap}, nil
}

// command returns a command that runs under the limit.
func (c *confined) command(name string, args ...string) *exec.Cmd {
	all := append(append(append([]string{}, c.wrap...), name), args...)
	return exec.Command(all[0], all[1:]...)
}

// used returns the peak memory use, page cache included, and how often the kernel killed for it; -1 means
// unknown.
func (c *confined) used() (peak int64, kills int) {
	peak, kills = -1, -1
	if c.dir == "" {
		return peak, kills
	}
	if text, err := os.ReadFile(c.peak); err == nil {
		peak, _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	text, _ := os.ReadFile(c.kills)
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return peak, kills
}

// resident returns the peak resident memory of a process, as counted by the kernel; 0 if the process has
// ended.
func resident(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(n)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}
