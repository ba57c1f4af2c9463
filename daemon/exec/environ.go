package exec

import (
	"fmt"
	"maps"
	"os"
	osexec "os/exec"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
)

// ownEnv are the variables that identify a command's run to the command.
var ownEnv = []string{"EMITD_DAEMON", "EMITD_UNIT", "EMITD_GENERATION", "EMITD_TERM", "EMITD_NODE", "EMITD_DUE"}

// inherited are the variables of emitd's own environment that every command gets. None of them
// holds a secret. Config.InheritEnv names more.
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM"}

// matches reports whether a name matches one of the patterns, which may end in *.
func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, open := strings.CutSuffix(p, "*")
		return open && strings.HasPrefix(name, prefix) || p == name
	})
}

// environ returns the environment of the command: what it inherits, then Env, then its identity.
func (c Config) environ(own []string, a *daemon.Assignment) []string {
	env := slices.DeleteFunc(slices.Clone(own), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return !matches(inherited, name) && !matches(c.InheritEnv, name) || slices.Contains(ownEnv, name)
	})
	if c.Dir != "" {
		env = append(env, "PWD="+c.Dir)
	}
	if c.User != "" {
		if u, err := lookupUser(c.User); err == nil {
			env = append(env, "HOME="+u.HomeDir, "USER="+u.Username, "LOGNAME="+u.Username)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		env = append(env, name+"="+c.Env[name])
	}
	if !c.due.IsZero() {
		env = append(env, "EMITD_DUE="+c.due.Format(time.RFC3339))
	}
	return append(env,
		"EMITD_DAEMON="+string(a.Unit.Daemon), "EMITD_UNIT="+a.Unit.String(),
		"EMITD_GENERATION="+strconv.FormatInt(a.Generation, 10), "EMITD_TERM="+strconv.FormatInt(a.Term, 10),
		"EMITD_NODE="+a.Node)
}

// valueOf returns the last value of a variable, which is the one that a process sees.
func valueOf(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// CheckHost reports why the command could not be started on this machine, or nil. It checks the
// directory, the program and the user.
func (c Config) CheckHost() error {
	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: c.ID}}, 0, "", nil)
	_, err := c.command(os.Environ(), a)
	return err
}

// command returns what the guardian needs to start the process.
func (c Config) command(own []string, a *daemon.Assignment) (*program, error) {
	if c.Dir == "" { // emitd's directory; the guardian has another
		dir, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		c.Dir = dir
	}
	env := c.environ(own, a)
	path, err := c.find(valueOf(env, "PATH"))
	if err != nil {
		return nil, err
	}
	u, err := c.rights()
	if err != nil {
		return nil, err
	}
	return &program{Path: []byte(path), Args: bytesOf(c.Command), Env: bytesOf(unique(env)), Dir: []byte(c.Dir), User: u}, nil
}

func bytesOf(texts []string) [][]byte {
	out := make([][]byte, len(texts))
	for i, t := range texts {
		out[i] = []byte(t)
	}
	return out
}

// unique drops settings that a later setting of the same variable replaces.
func unique(env []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, kv := range slices.Backward(env) {
		if name, _, _ := strings.Cut(kv, "="); !seen[name] {
			seen[name] = true
			out = append(out, kv)
		}
	}
	slices.Reverse(out)
	return out
}

// find returns the path of the program: as given, relative to Dir, or found in PATH.
func (c Config) find(path string) (string, error) {
	if c.Dir != "" {
		switch info, err := os.Stat(c.Dir); {
		case err != nil:
			return "", fmt.Errorf("chdir %s: %w", c.Dir, cause(err))
		case !info.IsDir():
			return "", fmt.Errorf("chdir %s: is not a directory", c.Dir)
		}
	}
	name := c.Command[0]
	if strings.Contains(name, "/") {
		return name, c.executable(name, name)
	}
	for _, dir := range filepath.SplitList(path) {
		if full := filepath.Join(dir, name); filepath.IsAbs(full) && c.executable(name, full) == nil {
			return full, nil
		}
	}
	return "", &osexec.Error{Name: name, Err: osexec.ErrNotFound}
}

// executable returns nil if the file seems to be executable.
func (c Config) executable(name, path string) error {
	if !filepath.IsAbs(path) && c.Dir != "" {
		path = filepath.Join(c.Dir, path)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return &osexec.Error{Name: name, Err: cause(err)}
	case info.IsDir():
		return &osexec.Error{Name: name, Err: fmt.Errorf("is a directory")}
	case info.Mode()&0o111 == 0:
		return &osexec.Error{Name: name, Err: os.ErrPermission}
	}
	return nil
}

// cause returns the system's error without the path.
func cause(err error) error {
	if e, ok := err.(*os.PathError); ok { //nolint:errorlint // of os.Stat
		return e.Err
	}
	return err
}

// rights returns the user whose rights the command has; nil means emitd's.
func (c Config) rights() (*user, error) {
	if c.User == "" && c.Group == "" {
		return nil, nil // no other user
	}
	me, err := osuser.Current()
	if err != nil {
		return nil, err
	}
	u := me
	if c.User != "" {
		if u, err = lookupUser(c.User); err != nil {
			return nil, err
		}
	}
	gid := u.Gid
	if c.Group != "" {
		if gid, err = lookupGroup(c.Group); err != nil {
			return nil, err
		}
	}
	if u.Uid == me.Uid && gid == me.Gid {
		return nil, nil // no other user
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("user and group need emitd to run as root; it runs as %s", me.Username)
	}
	out := &user{UID: number(u.Uid), GID: number(gid)}
	groups, _ := u.GroupIds()
	for _, g := range append([]string{gid}, groups...) {
		out.Groups = append(out.Groups, number(g))
	}
	return out, nil
}

func number(id string) uint32 {
	n, _ := strconv.ParseUint(id, 10, 32)
	return uint32(n) // 32 bits
}

func lookupUser(name string) (*osuser.User, error) {
	if _, err := strconv.ParseUint(name, 10, 32); err != nil {
		return osuser.Lookup(name)
	}
	if u, err := osuser.LookupId(name); err == nil {
		return u, nil
	}
	return &osuser.User{Uid: name, Gid: name, Username: name, HomeDir: "/"}, nil
}

func lookupGroup(name string) (string, error) {
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		return name, nil
	}
	g, err := osuser.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}
