package exec

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroups is the guardian's directory of control groups (version 2), inside emitd's own. Each run
// has a control group in it, which a process cannot leave unless it may write there. The guardian
// holds a lock on its directory. A directory that is not locked belongs to a guardian that has
// ended.
type cgroups struct {
	dir  string
	lock *os.File
	left []string // directories that could not be removed yet
}

// cgroup is the control group of one run.
type cgroup struct {
	dir string
	fd  int
}

const cgroupPrefix = "emitd-exec-"

// newCgroups returns nil if emitd may not create control groups.
func newCgroups() *cgroups {
	parent, err := ownCgroup()
	if err != nil || !delegated(parent) {
		return nil
	}
	endLeftCgroups(parent)
	c := &cgroups{dir: filepath.Join(parent, cgroupPrefix+strconv.Itoa(os.Getpid()))}
	if err := os.Mkdir(c.dir, 0o755); err != nil { // its content is the kernel's
		return nil
	}
	if c.lock, err = lockCgroup(c.dir); err != nil {
		_ = os.Remove(c.dir)
		return nil
	}
	if _, err := os.Stat(filepath.Join(c.dir, "cgroup.kill")); err != nil { // missing before Linux 5.14
		c.close()
		return nil
	}
	return c
}

// ownCgroup returns the directory of this process's control group.
func ownCgroup() (string, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	return cgroupDir(string(own), string(mounts))
}

// cgroupDir finds that directory in the texts of /proc/self/cgroup and /proc/self/mountinfo.
func cgroupDir(own, mounts string) (string, error) {
	path := ""
	for l := range strings.Lines(own) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(l, "\n"), "0::"); ok {
			path = p
		}
	}
	for l := range strings.Lines(mounts) {
		f, kind, _ := strings.Cut(l, " - ")
		fields := strings.Fields(f)
		if path == "" || len(fields) < 5 || !strings.HasPrefix(kind, "cgroup2 ") {
			continue
		}
		if rest, err := filepath.Rel(fields[3], path); err == nil && !strings.HasPrefix(rest, "..") {
			return filepath.Join(fields[4], rest), nil
		}
	}
	return "", errors.New("no control group of version 2")
}

// delegated reports whether emitd may create groups there. Groups that systemd manages belong to
// systemd, unless the unit has Delegate=yes.
func delegated(dir string) bool {
	switch filepath.Ext(dir) {
	case ".service", ".scope", ".slice":
	default:
		return true
	}
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		var v [8]byte
		if n, err := unix.Getxattr(dir, name, v[:]); err == nil && string(v[:n]) == "1" {
			return true
		}
	}
	return false
}

var errLocked = errors.New("is in use")

func lockCgroup(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { // descriptors are small
		_ = f.Close()
		return nil, errLocked
	}
	return f, nil
}

// sweepCgroups kills the processes that guardians which have ended left in control groups.
func sweepCgroups() {
	if parent, err := ownCgroup(); err == nil && delegated(parent) {
		endLeftCgroups(parent)
	}
}

// endLeftCgroups kills the processes that guardians which have ended left in control groups below
// parent.
func endLeftCgroups(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, cgroupPrefix+"*"))
	end := time.Now().Add(time.Second) // for all of them together, because emitd waits for an answer
	var left []*cgroup
	for _, dir := range dirs {
		lock, err := lockCgroup(dir)
		if err != nil {
			continue
		}
		defer lock.Close()
		c := &cgroup{dir: dir}
		if n := len(c.members()); n > 0 {
			logf("emit-guardian: killed %d processes of daemons that another guardian had left behind\n", n)
		}
		c.kill()
		left = append(left, c)
	}
	for _, c := range left {
		for c.populated() && time.Now().Before(end) {
			time.Sleep(10 * time.Millisecond)
		}
		_ = removeCgroup(c.dir)
	}
}

// make returns a control group for a run, or nil.
func (c *cgroups) make(run uint64) *cgroup {
	dir := filepath.Join(c.dir, strconv.FormatUint(run, 10))
	if err := os.Mkdir(dir, 0o755); err != nil { // its content is the kernel's
		return nil
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_RDONLY, 0)
	if err != nil {
		_ = os.Remove(dir)
		return nil
	}
	return &cgroup{dir: dir, fd: fd}
}

// remove removes the control group of a run that is gone. The kernel may need a moment, so removals
// that fail are tried again later.
func (c *cgroups) remove(g *cgroup) {
	_ = unix.Close(g.fd)
	c.left = append(c.left, g.dir)
	c.left = slices.DeleteFunc(c.left, func(dir string) bool { return removeCgroup(dir) == nil })
}

func (c *cgroups) close() {
	_ = removeCgroup(c.dir)
	if c.lock != nil {
		_ = c.lock.Close()
	}
}

// removeCgroup removes a control group and the groups below it.
func removeCgroup(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	for _, d := range slices.Backward(within(dir)) {
		err = unix.Rmdir(d)
	}
	return err
}

// within returns the directory and those below it, parents first.
func within(dir string) []string {
	var out []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			out = append(out, path)
		}
		return nil
	})
	return out
}

// members returns the processes in the group and in groups below it.
func (c *cgroup) members() []process {
	var out []process
	for _, dir := range within(c.dir) {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(f)
			if err != nil || pid == 0 {
				continue
			}
			if p, err := lookup(pid); err == nil && !p.dead {
				out = append(out, p)
			}
		}
	}
	return out
}

// kill kills all processes in the group, including those that are being forked.
func (c *cgroup) kill() {
	_ = os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0)
}

// populated reports whether a process of the group may execute something.
func (c *cgroup) populated() bool {
	text, err := os.ReadFile(filepath.Join(c.dir, "cgroup.events"))
	return !errors.Is(err, fs.ErrNotExist) && !strings.Contains(string(text), "populated 0")
}
