package exec

import "testing"

func TestCgroupDir(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ own, mounts, want string }{
		"version 2":     {"0::/system.slice/emitd.service\n", "35 24 0:30 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/system.slice/emitd.service"},
		"both versions": {"5:cpu:/x\n0::/\n", "30 24 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n35 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified"},
		"a container":   {"0::/docker/77\n", "35 24 0:30 /docker/77 /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "/sys/fs/cgroup"},
		"outside":       {"0::/../x\n", "35 24 0:30 /docker/77 /sys/fs/cgroup ro - cgroup2 cgroup rw\n", ""},
		"version 1":     {"5:cpu:/x\n", "30 24 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", ""},
		"none":          {"", "", ""},
	} {
		if got, err := cgroupDir(c.own, c.mounts); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// Groups that systemd manages are not touched.
func TestDelegated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, want := range map[string]bool{dir: true, dir + "/emitd.service": false, dir + "/session-2.scope": false} {
		if got := delegated(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
